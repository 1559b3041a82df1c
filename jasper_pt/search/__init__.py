"""The beam search and the n-gram models in C++, and how Python calls them: see native.py."""

"""The sentences and voices of data/embedded_speech.py in other languages, for alphabets other than English.

Russian: no word needs knowledge of its case, since every phrase stands in the form in which it is said. Where a word is
stressed does not matter: what is written is the same. No two words sound the same.
"""

from typing import NamedTuple


class Grammar(NamedTuple):
    """words: choices by symbol; rules: forms by symbol, the first symbol is Sentence; accents: voices of espeak-ng."""

    words: dict[str, str]
    rules: dict[str, list[str]]
    accents: tuple[str, ...]
    articles: tuple[str, ...] = ()  # words that may come twice in a sentence


_RUSSIAN_WORDS = {
    "He": "антон борис виктор иван максим пётр андрей николай степан олег доктор учитель капитан художник моряк судья",
    "She": "анна мария ольга вера нина елена соня царица певица дочь",
    "HeDid": "спал ждал пел смеялся прыгал танцевал молчал исчез упал ушёл",
    "SheDid": "спала ждала пела смеялась прыгала танцевала молчала исчезла упала ушла",
    "HeFound": "нашёл купил открыл починил видел потерял сломал мыл нёс хотел",
    "SheFound": "нашла купила открыла починила видела потеряла сломала мыла несла хотела",
    "Masculine": "красный синий старый новый тяжёлый маленький большой зелёный жёлтый пустой",
    "Box": "ящик мост ключ стол нож замок журнал чайник лимон билет фонарь шкаф",
    "Feminine": "красную синюю старую новую тяжёлую маленькую большую зелёную жёлтую пустую",
    "Book": "книгу лампу карту чашку лодку корзину куртку скрипку бутылку шапку",
    "Number": "пять шесть семь восемь девять десять двадцать тридцать сорок сто",
    "Things": "ключей столов ножей лимонов билетов книг ламп чашек лодок бутылок",
    "Near": "возле около напротив",
    "Place": "реки школы станции деревни библиотеки музея рынка леса дома острова",
    "Day": "понедельник вторник четверг воскресенье",
    "Time": "вчера сегодня утром вечером ночью весной летом осенью зимой",
    "We": "мы вы они",
}
_RUSSIAN_RULES = {
    "Sentence": [
        "He HeDid",
        "She SheDid",
        "He HeDid Where",
        "She SheDid Where",
        "He HeFound Object",
        "She SheFound Object",
        "He HeFound Object Where",
        "She SheFound Object Where",
        "When He HeFound Object",
        "When She SheFound Object",
        "When He HeDid Where",
        "When She SheDid Where",
        "He HeDid потому что She SheDid",
        "She SheFound Object но He HeDid",
        "где Masculine Box",
        "кто HeFound Object",
        "это Masculine Box",
        "We не знали где He HeDid",
    ],
    "Object": ["Box", "Masculine Box", "Book", "Feminine Book", "Number Things"],
    "Where": ["Near Place", "Near Place", "за мостом", "под окном", "в саду", "на площади"],
    "When": ["Time", "Time", "в Day"],
}

GRAMMARS = {"ru": Grammar(_RUSSIAN_WORDS, _RUSSIAN_RULES, ("ru",))}

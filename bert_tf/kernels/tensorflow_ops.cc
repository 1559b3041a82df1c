// The functions of elementwise.h, attention.h and optimizer.h as TensorFlow operations for CPUs, on TensorFlow's own threads; ops.py
// (with their gradients) and optimization.py say what they compute. Shapes: see elementwise.h.
//
// Outputs take the memory of an input that nobody else needs, which spares a pass through memory.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "optimizer.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;

template <class T>
using Raw = std::conditional_t<std::is_same_v<T, float>, float,
                               std::conditional_t<std::is_same_v<T, Eigen::half>, bert::float16, bert::bfloat16>>;

template <class T>
const Raw<T>* in(OpKernelContext* context, int index) {
  return reinterpret_cast<const Raw<T>*>(context->input(index).flat<T>().data());
}

template <class T>
Raw<T>* data(Tensor* tensor) {
  return reinterpret_cast<Raw<T>*>(tensor->flat<T>().data());
}

bert::Parallel parallel(OpKernelContext* context) {
  using tsl::thread::ThreadPool;
  ThreadPool* threads = context->device()->tensorflow_cpu_worker_threads()->workers;
  return [threads](int64_t total, int64_t cost, const bert::Body& body) {
    if (total > 0) threads->ParallelFor(total, ThreadPool::SchedulingParams::Adaptive(cost), body);
  };
}

// `count` inputs from `first` on with the number of elements [expected].
Status check_sizes(OpKernelContext* context, int first, int count, int64_t expected) {
  for (int i = first; i < first + count; i++)
    if (context->input(i).NumElements() != expected)
      return absl::InvalidArgumentError(absl::StrCat("input ", i, " has ", context->input(i).NumElements(),
                                                     " elements, expected ", expected));
  return absl::OkStatus();
}

Status check_rank(OpKernelContext* context, int index, int rank) {
  const TensorShape& shape = context->input(index).shape();
  if (shape.dims() != rank)
    return absl::InvalidArgumentError(
        absl::StrCat("input ", index, " has shape ", shape.DebugString(), ", expected rank ", rank));
  return absl::OkStatus();
}

Status check_scalars(OpKernelContext* context, int first, int count) { return check_sizes(context, first, count, 1); }

// How many rows an example has.
Status rows_each(OpKernelContext* context, int batch_input, int64_t rows, int64_t* length) {
  TF_RETURN_IF_ERROR(check_scalars(context, batch_input, 1));
  const int64_t batch = context->input(batch_input).scalar<int32_t>()();
  if (batch < 0 || (batch == 0 ? rows != 0 : rows % batch != 0))
    return absl::InvalidArgumentError(absl::StrCat(rows, " rows are not ", batch, " examples of equal length"));
  *length = batch == 0 ? 0 : rows / batch;
  return absl::OkStatus();
}

#define PLACES Input("example: int32").Input("position: int32")
#define SIGNATURE_OF_DROPOUT                                                                           \
  Input("seed: uint32").Input("first_row: uint32").Attr("threshold: int = 0").Attr("keep_scale: float = 1.0")

class DropoutKernel : public OpKernel {
 public:
  explicit DropoutKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("threshold", &threshold_));
    OP_REQUIRES_OK(construction, construction->GetAttr("keep_scale", &scale_));
  }

 protected:
  bool drops() const { return threshold_ > 0; }
  // The two inputs from `first` on, of one element a row; without dropout they are not looked at.
  Status places(OpKernelContext* context, int first, int64_t rows, bert::Places* places) const {
    if (drops()) TF_RETURN_IF_ERROR(check_sizes(context, first, 2, rows));
    *places = {context->input(first).flat<int32_t>().data(), context->input(first + 1).flat<int32_t>().data()};
    return absl::OkStatus();
  }
  bert::Draw draw(OpKernelContext* context, int seed_input) const {
    return {context->input(seed_input).scalar<uint32_t>()(), context->input(seed_input + 1).scalar<uint32_t>()(),
            static_cast<uint32_t>(threshold_), scale_};
  }

 private:
  int64_t threshold_;
  float scale_;
};

#define TYPES Attr("T: {float, bfloat16}")
#define REGISTER_FOR(NAME, CLASS, T) \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(DEVICE_CPU).TypeConstraint<T>("T"), CLASS<T>);
#define REGISTER_FOR_BOTH(NAME, CLASS) \
  REGISTER_FOR(NAME, CLASS, float) REGISTER_FOR(NAME, CLASS, tensorflow::bfloat16)

// ------------------------------------------------------------------------------------------------------ gelu
REGISTER_OP("BertGelu")
    .Input("x: T")
    .Input("bias: T")
    .Output("y: T")
    .TYPES.Attr("erf: bool")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    });
REGISTER_OP("BertGeluGrad")
    .Input("x: T")
    .Input("bias: T")
    .Input("dy: T")
    .Output("dx: T")
    .Output("dbias: T")
    .TYPES.Attr("erf: bool")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    });

class GeluKernel : public OpKernel {
 public:
  explicit GeluKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("erf", &erf_));
  }

 protected:
  bool erf_;
};

template <class T>
class Gelu : public GeluKernel {
 public:
  using GeluKernel::GeluKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape();
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, shape.dim_size(1)));
    const Raw<T>* x = in<T>(context, 0);
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &y));
    bert::gelu(parallel(context), shape.dim_size(0), shape.dim_size(1), erf_, x, in<T>(context, 1), data<T>(y));
  }
};
REGISTER_FOR_BOTH("BertGelu", Gelu)

template <class T>
class GeluGrad : public GeluKernel {
 public:
  using GeluKernel::GeluKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape();
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, shape.dim_size(1)));
    OP_REQUIRES_OK(context, check_sizes(context, 2, 1, shape.num_elements()));
    const Raw<T>*x = in<T>(context, 0), *dy = in<T>(context, 2);
    Tensor *dx, *dbias;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({2, 0}, 0, shape, &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(1).shape(), &dbias));
    bert::gelu_grad(parallel(context), shape.dim_size(0), shape.dim_size(1), erf_, x, in<T>(context, 1), dy,
                    data<T>(dx), data<T>(dbias));
  }
};
REGISTER_FOR_BOTH("BertGeluGrad", GeluGrad)

// ------------------------------------------------------------------------------------------------ layer norm
// Shapes of y, s [R, H] (s: empty unless kept), mean, rstd [R, 1].
Status normed_shapes(InferenceContext* c, bool keep_sum, bool keep_moments) {
  ShapeHandle x;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
  const ShapeHandle empty = c->Vector(0), moment = keep_moments ? c->Matrix(c->Dim(x, 0), 1) : empty;
  c->set_output(0, x);
  int output = 1;
  if (c->num_outputs() == 4) c->set_output(output++, keep_sum ? x : empty);
  c->set_output(output, moment);
  c->set_output(output + 1, moment);
  return absl::OkStatus();
}

REGISTER_OP("BertLayerNorm")
    .Input("x: T")
    .Input("gamma: float")
    .Input("beta: float")
    .Output("y: T")
    .Output("mean: float")
    .Output("rstd: float")
    .TYPES.SetShapeFn([](InferenceContext* c) { return normed_shapes(c, false, true); });
REGISTER_OP("BertAddLayerNorm")
    .Input("x: T")
    .Input("bias: T")
    .Input("residual: T")
    .Input("gamma: float")
    .Input("beta: float")
    .PLACES.SIGNATURE_OF_DROPOUT.Output("y: T")
    .Output("s: T")
    .Output("mean: float")
    .Output("rstd: float")
    .TYPES.Attr("keep: bool")
    .SetShapeFn([](InferenceContext* c) {
      bool keep;
      TF_RETURN_IF_ERROR(c->GetAttr("keep", &keep));
      return normed_shapes(c, keep, keep);
    });
REGISTER_OP("BertAddLayerNormGrad")
    .Input("dy: T")
    .Input("s: T")
    .Input("mean: float")
    .Input("rstd: float")
    .Input("gamma: float")
    .PLACES.SIGNATURE_OF_DROPOUT.Output("dx: T")
    .Output("ds: T")
    .Output("dgamma: float")
    .Output("dbeta: float")
    .Output("dbias: T")
    .TYPES.SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 2; i++) c->set_output(i, c->input(1));
      for (int i = 2; i < 5; i++) c->set_output(i, c->input(4));
      return absl::OkStatus();
    });

template <class T>
class LayerNorm : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape();
    const int64_t rows = shape.dim_size(0), columns = shape.dim_size(1);
    OP_REQUIRES_OK(context, check_sizes(context, 1, 2, columns));
    const Raw<T>* x = in<T>(context, 0);
    Tensor *y, *mean, *rstd;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({rows, 1}), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({rows, 1}), &rstd));
    bert::layer_norm<Raw<T>>(parallel(context), rows, columns, {}, {}, x, nullptr, nullptr, in<float>(context, 1),
                             in<float>(context, 2), data<T>(y), nullptr, data<float>(mean), data<float>(rstd));
  }
};
REGISTER_FOR_BOTH("BertLayerNorm", LayerNorm)

template <class T>
class AddLayerNorm : public DropoutKernel {
 public:
  explicit AddLayerNorm(OpKernelConstruction* construction) : DropoutKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("keep", &keep_));
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape();
    const int64_t rows = shape.dim_size(0), columns = shape.dim_size(1);
    bert::Places where;
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, columns));
    OP_REQUIRES_OK(context, check_sizes(context, 2, 1, shape.num_elements()));
    OP_REQUIRES_OK(context, check_sizes(context, 3, 2, columns));
    OP_REQUIRES_OK(context, places(context, 5, rows, &where));
    OP_REQUIRES_OK(context, check_scalars(context, 7, 2));
    const Raw<T>*x = in<T>(context, 0), *residual = in<T>(context, 2);
    const TensorShape empty({0}), moment({rows, 1});
    Tensor *y, *s, *mean, *rstd;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &y));
    if (keep_)
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({2}, 1, shape, &s));
    else
      OP_REQUIRES_OK(context, context->allocate_output(1, empty, &s));
    OP_REQUIRES_OK(context, context->allocate_output(2, keep_ ? moment : empty, &mean));
    OP_REQUIRES_OK(context, context->allocate_output(3, keep_ ? moment : empty, &rstd));
    bert::layer_norm<Raw<T>>(parallel(context), rows, columns, where, draw(context, 7), x, in<T>(context, 1),
                             residual, in<float>(context, 3), in<float>(context, 4), data<T>(y),
                             keep_ ? data<T>(s) : nullptr, keep_ ? data<float>(mean) : nullptr,
                             keep_ ? data<float>(rstd) : nullptr);
  }

 private:
  bool keep_;
};
REGISTER_FOR_BOTH("BertAddLayerNorm", AddLayerNorm)

template <class T>
class AddLayerNormGrad : public DropoutKernel {
 public:
  using DropoutKernel::DropoutKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape(), columns_shape({shape.dim_size(1)});
    const int64_t rows = shape.dim_size(0), columns = shape.dim_size(1);
    bert::Places where;
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, shape.num_elements()));
    OP_REQUIRES_OK(context, check_sizes(context, 2, 2, rows));
    OP_REQUIRES_OK(context, check_sizes(context, 4, 1, columns));
    OP_REQUIRES_OK(context, places(context, 5, rows, &where));
    OP_REQUIRES_OK(context, check_scalars(context, 7, 2));
    const Raw<T>*dy = in<T>(context, 0), *s = in<T>(context, 1);
    Tensor *dx, *ds, *dgamma, *dbeta, *dbias;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 1, shape, &ds));
    if (drops()) {
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 0, shape, &dx));
    } else {
      context->set_output(0, *ds);
      dx = ds;
    }
    OP_REQUIRES_OK(context, context->allocate_output(2, columns_shape, &dgamma));
    OP_REQUIRES_OK(context, context->allocate_output(3, columns_shape, &dbeta));
    OP_REQUIRES_OK(context, context->allocate_output(4, columns_shape, &dbias));
    bert::layer_norm_grad(parallel(context), rows, columns, where, draw(context, 7), dy, s, in<float>(context, 2),
                          in<float>(context, 3), in<float>(context, 4), data<T>(dx), data<T>(ds), data<float>(dgamma),
                          data<float>(dbeta), data<T>(dbias));
  }
};
REGISTER_FOR_BOTH("BertAddLayerNormGrad", AddLayerNormGrad)

// ------------------------------------------------------------------------------------------------- attention
REGISTER_OP("BertAttention")
    .Input("scores: T")
    .Input("mask: float")
    .SIGNATURE_OF_DROPOUT.Output("p: T")
    .Output("dropped: T")
    .TYPES.Attr("scale: float")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 2; i++) c->set_output(i, c->input(0));
      return absl::OkStatus();
    });
REGISTER_OP("BertAttentionGrad")
    .Input("dy: T")
    .Input("p: T")
    .SIGNATURE_OF_DROPOUT.Output("dscores: T")
    .TYPES.Attr("scale: float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    });

class AttentionKernel : public DropoutKernel {
 public:
  explicit AttentionKernel(OpKernelConstruction* construction) : DropoutKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale_));
  }

 protected:
  static bert::ScoreShape score_shape(const TensorShape& shape) {
    return {shape.dim_size(0), shape.dim_size(1), shape.dim_size(2), shape.dim_size(3)};
  }
  float scale_;
};

template <class T>
class Attention : public AttentionKernel {
 public:
  using AttentionKernel::AttentionKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 4));
    const TensorShape shape = context->input(0).shape();
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, shape.dim_size(0) * shape.dim_size(3)));
    OP_REQUIRES_OK(context, check_scalars(context, 2, 2));
    const Raw<T>* scores = in<T>(context, 0);
    Tensor *p, *dropped;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &p));
    if (drops()) {
      OP_REQUIRES_OK(context, context->allocate_output(1, shape, &dropped));
    } else {
      context->set_output(1, *p);
      dropped = p;
    }
    bert::attention(parallel(context), score_shape(shape), scale_, draw(context, 2), scores, in<float>(context, 1),
                    data<T>(p), data<T>(dropped));
  }
};
REGISTER_FOR_BOTH("BertAttention", Attention)

template <class T>
class AttentionGrad : public AttentionKernel {
 public:
  using AttentionKernel::AttentionKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 1, 4));
    const TensorShape shape = context->input(1).shape();
    OP_REQUIRES_OK(context, check_sizes(context, 0, 1, shape.num_elements()));
    OP_REQUIRES_OK(context, check_scalars(context, 2, 2));
    const Raw<T>*dy = in<T>(context, 0), *p = in<T>(context, 1);
    Tensor* dscores;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 0, shape, &dscores));
    bert::attention_grad(parallel(context), score_shape(shape), scale_, draw(context, 2), dy, p, data<T>(dscores));
  }
};
REGISTER_FOR_BOTH("BertAttentionGrad", AttentionGrad)

REGISTER_OP("BertPackedAttention")
    .Input("x: T")
    .Input("bias: T")
    .Input("starts: int32")
    .Input("lengths: int32")
    .SIGNATURE_OF_DROPOUT.Output("context: T")
    .Output("log_sum: float")
    .TYPES.Attr("heads: int >= 1")
    .Attr("scale: float")
    .SetShapeFn([](InferenceContext* c) {
      int heads;
      TF_RETURN_IF_ERROR(c->GetAttr("heads", &heads));
      ShapeHandle x;
      DimensionHandle hidden;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
      TF_RETURN_IF_ERROR(c->Divide(c->Dim(x, 1), 3, true, &hidden));
      c->set_output(0, c->Matrix(c->Dim(x, 0), hidden));
      c->set_output(1, c->Matrix(c->MakeDim(heads), c->Dim(x, 0)));
      return absl::OkStatus();
    });
REGISTER_OP("BertPackedAttentionGrad")
    .Input("dcontext: T")
    .Input("x: T")
    .Input("bias: T")
    .Input("context: T")
    .Input("log_sum: float")
    .Input("starts: int32")
    .Input("lengths: int32")
    .SIGNATURE_OF_DROPOUT.Output("dx: T")
    .Output("dbias: T")
    .TYPES.Attr("heads: int >= 1")
    .Attr("scale: float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      c->set_output(1, c->input(2));
      return absl::OkStatus();
    });

class PackedAttentionKernel : public AttentionKernel {
 public:
  explicit PackedAttentionKernel(OpKernelConstruction* construction) : AttentionKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("heads", &heads_));
  }

 protected:
  // The shape of x [tokens, 3H] and its bias, which are inputs `first` and `first` + 1.
  Status heads_shape(OpKernelContext* context, int first, bert::HeadsShape* shape) const {
    TF_RETURN_IF_ERROR(check_rank(context, first, 2));
    const int64_t columns = context->input(first).dim_size(1);
    TF_RETURN_IF_ERROR(check_sizes(context, first + 1, 1, columns));
    if (columns % (3 * heads_))
      return absl::InvalidArgumentError(
          absl::StrCat(columns, " columns are not 3 times ", heads_, " heads of equal size"));
    *shape = {context->input(first).dim_size(0), heads_, columns / (3 * heads_)};
    return absl::OkStatus();
  }
  // Inputs `first` and `first` + 1: where the sequences begin and how long they are.
  static Status spans(OpKernelContext* context, int first, int64_t tokens, bert::Spans* spans) {
    const int64_t count = context->input(first).NumElements();
    TF_RETURN_IF_ERROR(check_sizes(context, first + 1, 1, count));
    *spans = {count, context->input(first).flat<int32_t>().data(), context->input(first + 1).flat<int32_t>().data()};
    std::vector<char> used(tokens);
    for (int64_t i = 0; i < count; i++) {
      const int64_t start = spans->starts[i], length = spans->lengths[i];
      if (start < 0 || length < 0 || start + length > tokens ||
          std::count(used.begin() + start, used.begin() + start + length, 1))
        return absl::InvalidArgumentError(absl::StrCat("sequence ", i, " of ", length, " tokens from ", start,
                                                       " on overlaps another or lies outside of ", tokens));
      std::fill_n(used.begin() + start, length, 1);
    }
    return absl::OkStatus();
  }
  int64_t heads_;
};

template <class T>
class PackedAttention : public PackedAttentionKernel {
 public:
  using PackedAttentionKernel::PackedAttentionKernel;
  void Compute(OpKernelContext* context) override {
    bert::HeadsShape shape;
    bert::Spans where;
    OP_REQUIRES_OK(context, heads_shape(context, 0, &shape));
    OP_REQUIRES_OK(context, spans(context, 2, shape.tokens, &where));
    OP_REQUIRES_OK(context, check_scalars(context, 4, 2));
    Tensor *result, *log_sum;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({shape.tokens, shape.heads * shape.depth}), &result));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.heads, shape.tokens}), &log_sum));
    bert::packed_attention(parallel(context), shape, where, scale_, draw(context, 4), in<T>(context, 0),
                           in<T>(context, 1), data<T>(result), data<float>(log_sum));
  }
};
REGISTER_FOR_BOTH("BertPackedAttention", PackedAttention)

template <class T>
class PackedAttentionGrad : public PackedAttentionKernel {
 public:
  using PackedAttentionKernel::PackedAttentionKernel;
  void Compute(OpKernelContext* context) override {
    bert::HeadsShape shape;
    bert::Spans where;
    OP_REQUIRES_OK(context, heads_shape(context, 1, &shape));
    const int64_t hidden = shape.heads * shape.depth;
    OP_REQUIRES_OK(context, check_sizes(context, 0, 1, shape.tokens * hidden));
    OP_REQUIRES_OK(context, check_sizes(context, 3, 1, shape.tokens * hidden));
    OP_REQUIRES_OK(context, check_sizes(context, 4, 1, shape.tokens * shape.heads));
    OP_REQUIRES_OK(context, spans(context, 5, shape.tokens, &where));
    OP_REQUIRES_OK(context, check_scalars(context, 7, 2));
    Tensor *dx, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.tokens, 3 * hidden}), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({3 * hidden}), &dbias));
    bert::packed_attention_grad(parallel(context), shape, where, scale_, draw(context, 7), in<T>(context, 0),
                                in<T>(context, 1), in<T>(context, 2), in<T>(context, 3), in<float>(context, 4),
                                data<T>(dx), data<T>(dbias));
  }
};
REGISTER_FOR_BOTH("BertPackedAttentionGrad", PackedAttentionGrad)

// ----------------------------------------------------------------------------------------------------- heads
REGISTER_OP("BertSplitHeads")
    .Input("x: T")
    .Input("bias: T")
    .Input("batch: int32")
    .Output("q: T")
    .Output("k: T")
    .Output("v: T")
    .TYPES.Attr("heads: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      int heads;
      TF_RETURN_IF_ERROR(c->GetAttr("heads", &heads));
      ShapeHandle x;
      DimensionHandle batch, depth;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &x));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &batch));
      TF_RETURN_IF_ERROR(c->Divide(c->Dim(x, 1), 3 * heads, true, &depth));
      for (int i = 0; i < 3; i++) c->set_output(i, c->MakeShape({batch, c->MakeDim(heads), c->UnknownDim(), depth}));
      return absl::OkStatus();
    });
REGISTER_OP("BertSplitHeadsGrad")
    .Input("dq: T")
    .Input("dk: T")
    .Input("dv: T")
    .Output("dx: T")
    .Output("dbias: T")
    .TYPES.SetShapeFn([](InferenceContext* c) {
      ShapeHandle heads;
      DimensionHandle rows, columns;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &heads));
      TF_RETURN_IF_ERROR(c->Multiply(c->Dim(heads, 0), c->Dim(heads, 2), &rows));
      TF_RETURN_IF_ERROR(c->Multiply(c->Dim(heads, 1), c->Dim(heads, 3), &columns));
      TF_RETURN_IF_ERROR(c->Multiply(columns, 3, &columns));
      c->set_output(0, c->Matrix(rows, columns));
      c->set_output(1, c->Vector(columns));
      return absl::OkStatus();
    });

template <class T>
class SplitHeads : public OpKernel {
 public:
  explicit SplitHeads(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("heads", &heads_));
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const int64_t rows = context->input(0).dim_size(0), columns = context->input(0).dim_size(1);
    int64_t length;
    OP_REQUIRES_OK(context, check_sizes(context, 1, 1, columns));
    OP_REQUIRES_OK(context, rows_each(context, 2, rows, &length));
    OP_REQUIRES(context, columns % (3 * heads_) == 0,
                absl::InvalidArgumentError(
                    absl::StrCat(columns, " columns are not 3 times ", heads_, " heads of equal size")));
    const bert::HeadShape shape = {context->input(2).scalar<int32_t>()(), length, heads_, columns / (3 * heads_)};
    bert::Three<Raw<T>> parts;
    for (int i = 0; i < 3; i++) {
      Tensor* part;
      OP_REQUIRES_OK(context, context->allocate_output(
                                  i, TensorShape({shape.batch, shape.heads, shape.length, shape.depth}), &part));
      parts[i] = data<T>(part);
    }
    bert::split_heads(parallel(context), shape, in<T>(context, 0), in<T>(context, 1), parts);
  }

 private:
  int64_t heads_;
};
REGISTER_FOR_BOTH("BertSplitHeads", SplitHeads)

template <class T>
class SplitHeadsGrad : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 4));
    const Tensor& dq = context->input(0);
    OP_REQUIRES_OK(context, check_sizes(context, 1, 2, dq.NumElements()));
    const bert::HeadShape shape = {dq.dim_size(0), dq.dim_size(2), dq.dim_size(1), dq.dim_size(3)};
    const int64_t columns = 3 * shape.heads * shape.depth;
    Tensor *dx, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.batch * shape.length, columns}), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({columns}), &dbias));
    bert::split_heads_grad<Raw<T>>(parallel(context), shape, {in<T>(context, 0), in<T>(context, 1), in<T>(context, 2)},
                                   data<T>(dx), data<T>(dbias));
  }
};
REGISTER_FOR_BOTH("BertSplitHeadsGrad", SplitHeadsGrad)

// --------------------------------------------------------------------------------------------------- dropout
REGISTER_OP("BertDropout")
    .Input("x: T")
    .PLACES.SIGNATURE_OF_DROPOUT.Output("y: T")
    .TYPES.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    });

template <class T>
class Dropout : public DropoutKernel {
 public:
  using DropoutKernel::DropoutKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, check_rank(context, 0, 2));
    const TensorShape shape = context->input(0).shape();
    bert::Places where;
    OP_REQUIRES_OK(context, places(context, 1, shape.dim_size(0), &where));
    OP_REQUIRES_OK(context, check_scalars(context, 3, 2));
    const Raw<T>* x = in<T>(context, 0);
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &y));
    bert::dropout(parallel(context), shape.dim_size(0), shape.dim_size(1), where, draw(context, 3), x, data<T>(y));
  }
};
REGISTER_FOR_BOTH("BertDropout", Dropout)

// ------------------------------------------------------------------------------------------------- optimizer
// Calls body(T{}) with the type of TensorFlow that `type` names; types of a list of gradients.
#define GRADIENT_TYPES Attr("T: list({float, bfloat16, half}) >= 1")
template <class F>
void with_type(tensorflow::DataType type, F body) {
  if (type == tensorflow::DT_BFLOAT16)
    body(tensorflow::bfloat16{});
  else if (type == tensorflow::DT_HALF)
    body(Eigen::half{});
  else
    body(float{});
}

REGISTER_OP("BertGlobalNorm")
    .Input("gradients: T")
    .Output("norm: float")
    .GRADIENT_TYPES.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });
class GlobalNorm : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    double squares = 0;
    for (int i = 0; i < context->num_inputs(); i++)
      with_type(context->input_dtype(i), [&](auto type) {
        using T = decltype(type);
        squares += bert::sum_of_squares(parallel(context), context->input(i).NumElements(), in<T>(context, i));
      });
    Tensor* norm;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape(), &norm));
    norm->scalar<float>()() = std::sqrt(squares);
  }
};
REGISTER_KERNEL_BUILDER(Name("BertGlobalNorm").Device(DEVICE_CPU), GlobalNorm);

// weights, m, v: float32; copies: of any number of the weights, in bfloat16 or float16, several of which may lie in one
// variable (weights._Copy). copy: for each weight the index of its copy, or -1; column: where it begins there.
// keep and take: optimization.Hyper's beta and 1 - beta.
REGISTER_OP("BertOptimizerStep")
    .Input("weights: N * resource")
    .Input("m: N * resource")
    .Input("v: N * resource")
    .Input("copies: C * resource")
    .Input("gradients: T")
    .Input("lr: float")
    .Input("scale: float")
    .Input("correction1: float")
    .Input("correction2: float")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .GRADIENT_TYPES.Attr("decay: list(float)")
    .Attr("copy: list(int)")
    .Attr("column: list(int)")
    .Attr("keep1: float")
    .Attr("take1: float")
    .Attr("keep2: float")
    .Attr("take2: float")
    .Attr("epsilon: float")
    .Attr("trust_ratio: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); });

// Variables that are changed in place: their locks are held (taken in the order of their addresses, as TensorFlow does)
// and their memory belongs to nobody else.
class Locked {
 public:
  Status lock(OpKernelContext* context, const std::vector<tensorflow::ResourceHandle>& handles) {
    variables_.resize(handles.size());
    std::vector<tensorflow::mutex*> mutexes;
    for (size_t i = 0; i < handles.size(); i++) {
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handles[i], &variables_[i]));
      mutexes.push_back(variables_[i]->mu());
    }
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    locks_.reserve(mutexes.size());
    for (tensorflow::mutex* mutex : mutexes) locks_.emplace_back(*mutex);
    for (auto& variable : variables_) TF_RETURN_IF_ERROR(make_own(context, variable.get()));
    return absl::OkStatus();
  }
  Tensor* operator[](int index) { return variables_[index]->tensor(); }

 private:
  static Status make_own(OpKernelContext* context, tensorflow::Var* variable) {
    Tensor* tensor = variable->tensor();
    if (!variable->is_initialized || !tensor->IsInitialized())
      return absl::FailedPreconditionError(absl::StrCat(variable->DebugString(), " is not initialized"));
    // In copy_on_read_mode nobody reads the memory but under the lock.
    if (variable->copy_on_read_mode.load() || tensor->RefCountIsOne()) return absl::OkStatus();
    Tensor own;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &own));
    std::memcpy(own.data(), tensor->data(), tensor->TotalBytes());
    *tensor = own;
    return absl::OkStatus();
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;  // outlive their locks
  std::vector<tensorflow::mutex_lock> locks_;
};

class OptimizerStep : public OpKernel {
 public:
  explicit OptimizerStep(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("decay", &decay_));
    OP_REQUIRES_OK(construction, construction->GetAttr("copy", &copy_));
    OP_REQUIRES_OK(construction, construction->GetAttr("column", &column_));
    OP_REQUIRES_OK(construction, construction->GetAttr("keep1", &update_.keep1));
    OP_REQUIRES_OK(construction, construction->GetAttr("take1", &update_.take1));
    OP_REQUIRES_OK(construction, construction->GetAttr("keep2", &update_.keep2));
    OP_REQUIRES_OK(construction, construction->GetAttr("take2", &update_.take2));
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &update_.epsilon));
    OP_REQUIRES_OK(construction, construction->GetAttr("trust_ratio", &update_.trust_ratio));
    int count, copies;
    std::vector<tensorflow::DataType> gradients;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count));
    OP_REQUIRES_OK(construction, construction->GetAttr("C", &copies));
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &gradients));
    const size_t n = count;
    OP_REQUIRES(construction, gradients.size() == n && decay_.size() == n && copy_.size() == n && column_.size() == n,
                absl::InvalidArgumentError("the lists differ in length"));
    for (int64_t copy : copy_)
      OP_REQUIRES(construction, copy < copies, absl::InvalidArgumentError(absl::StrCat("there is no copy ", copy)));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList weights, m, v, copies, gradients;
    OP_REQUIRES_OK(context, context->input_list("weights", &weights));
    OP_REQUIRES_OK(context, context->input_list("m", &m));
    OP_REQUIRES_OK(context, context->input_list("v", &v));
    OP_REQUIRES_OK(context, context->input_list("copies", &copies));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, check_scalars(context, context->num_inputs() - 4, 4));
    bert::Update update = update_;
    float* const scalars[] = {&update.lr, &update.scale, &update.correction1, &update.correction2};
    for (int i = 0; i < 4; i++) *scalars[i] = context->input(context->num_inputs() - 4 + i).scalar<float>()();
    for (int i = 0; i < weights.size(); i++) {
      std::vector<tensorflow::ResourceHandle> handles;
      for (const auto* list : {&weights, &m, &v}) handles.push_back((*list)[i].scalar<tensorflow::ResourceHandle>()());
      if (copy_[i] >= 0) handles.push_back(copies[copy_[i]].scalar<tensorflow::ResourceHandle>()());
      OP_REQUIRES_OK(context, step(context, update, i, handles, gradients[i]));
    }
  }

 private:
  Status step(OpKernelContext* context, const bert::Update& update, int index,
              const std::vector<tensorflow::ResourceHandle>& handles, const Tensor& gradient) {
    Locked variables;
    TF_RETURN_IF_ERROR(variables.lock(context, handles));
    for (int i = 0; i < 3; i++)
      if (variables[i]->dtype() != tensorflow::DT_FLOAT || variables[i]->shape() != gradient.shape())
        return absl::InvalidArgumentError(
            absl::StrCat("weight and moments ", index, " must be float32 of the gradient's shape ",
                         gradient.shape().DebugString(), ", found ", variables[i]->DebugString(0)));
    Tensor* copy = copy_[index] >= 0 ? variables[3] : nullptr;
    if (copy) TF_RETURN_IF_ERROR(check_copy(index, *copy, gradient.shape()));
    with_type(gradient.dtype(), [&](auto type) {
      const auto* g = reinterpret_cast<const Raw<decltype(type)>*>(gradient.data());
      if (copy && copy->dtype() == tensorflow::DT_HALF)
        run<bert::float16>(context, update, index, variables, copy, g);
      else
        run<bert::bfloat16>(context, update, index, variables, copy, g);
    });
    return absl::OkStatus();
  }

  Status check_copy(int index, const Tensor& copy, const TensorShape& shape) const {
    const int last = shape.dims() - 1;
    bool fits = last >= 0 && copy.dims() == shape.dims() && column_[index] >= 0 &&
                column_[index] + shape.dim_size(last) <= copy.dim_size(last);
    for (int i = 0; fits && i < last; i++) fits = copy.dim_size(i) == shape.dim_size(i);
    if (!fits || (copy.dtype() != tensorflow::DT_HALF && copy.dtype() != tensorflow::DT_BFLOAT16))
      return absl::InvalidArgumentError(absl::StrCat("weight ", index, " of shape ", shape.DebugString(), " at column ",
                                                     column_[index], " does not fit ", copy.DebugString(0)));
    return absl::OkStatus();
  }

  template <class C, class G>
  void run(OpKernelContext* context, const bert::Update& update, int index, Locked& variables, Tensor* copy,
           const G* gradient) const {
    bert::Parameter<C> parameter = {};
    parameter.size = variables[0]->NumElements();
    parameter.w = data<float>(variables[0]);
    parameter.m = data<float>(variables[1]);
    parameter.v = data<float>(variables[2]);
    parameter.decay = decay_[index];
    if (copy) {
      const int last = copy->dims() - 1;
      parameter.copy = reinterpret_cast<C*>(copy->data()) + column_[index];
      parameter.columns = variables[0]->dim_size(last);
      parameter.stride = copy->dim_size(last);
    }
    bert::update(parallel(context), update, parameter, gradient);
  }

  std::vector<float> decay_;
  std::vector<int64_t> copy_, column_;
  bert::Update update_ = {};
};
REGISTER_KERNEL_BUILDER(Name("BertOptimizerStep").Device(DEVICE_CPU), OptimizerStep);

}  // namespace

// TensorFlow's C API as far as the operations need it: declared here, so that building asks for no TensorFlow, and
// looked up at run time in the TensorFlow that this process has loaded, so that one build serves many versions.
//
// The functions' documentation is in TensorFlow's own c_api.h, kernels.h, ops.h and tf_tensor.h.
#ifndef HDP_TF_C_API_H_
#define HDP_TF_C_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace hdp::tf {

struct TF_Status;
struct TF_Tensor;
struct TF_OpKernelContext;
struct TF_OpKernelConstruction;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
// Points at a std::function<void()> on TensorFlow's stack, which is gone when compute returns.
struct TF_AsyncOpKernelDoneCallback;

enum TF_Code : int {
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_ABORTED = 10,
  TF_INTERNAL = 13,
};

enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_HALF = 19,
};

using Create = void* (*)(TF_OpKernelConstruction*);
using ComputeAsync = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using Delete = void (*)(void*);
using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocate = void (*)(void*, size_t, void*);

// X(result, name without "TF_", arguments)
#define HDP_TF_FUNCTIONS(X)                                                                                          \
  X(TF_Status*, NewStatus, (void))                                                                                   \
  X(void, DeleteStatus, (TF_Status*))                                                                                \
  X(void, SetStatus, (TF_Status*, TF_Code, const char*))                                                             \
  X(int, GetCode, (const TF_Status*))                                                                                \
  X(const char*, Message, (const TF_Status*))                                                                        \
  X(TF_Tensor*, NewTensor, (TF_DataType, const int64_t*, int, void*, size_t, Deallocate, void*))                     \
  X(void, DeleteTensor, (TF_Tensor*))                                                                                \
  X(TF_DataType, TensorType, (const TF_Tensor*))                                                                     \
  X(int, NumDims, (const TF_Tensor*))                                                                                \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                                           \
  X(size_t, TensorByteSize, (const TF_Tensor*))                                                                      \
  X(void*, TensorData, (const TF_Tensor*))                                                                           \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                  \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                        \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                       \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                      \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, InferShapes))                      \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                               \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                            \
  X(TF_ShapeHandle*, NewShapeHandle, (void))                                                                         \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                      \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))              \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                             \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder, (const char*, const char*, Create, ComputeAsync, Delete))              \
  X(void, KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                                                \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                       \
  X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                             \
  X(void, OpKernelConstruction_GetAttrSize, (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*)) \
  X(void, OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))    \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))          \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                      \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                           \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                             \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                       \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))

struct Api {
#define HDP_TF_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  HDP_TF_FUNCTIONS(HDP_TF_MEMBER)
#undef HDP_TF_MEMBER
};

// The functions of the TensorFlow that is loaded; null, with the reason in `why`, where one is missing.
const Api* load_api(std::string& why);
// The same, once it is known that they are there.
const Api& api();

// A TF_Status that is deleted with its scope.
class Status {
 public:
  Status() : status_(api().NewStatus()) {}
  ~Status() { api().DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool ok() const { return api().GetCode(status_) == 0; }
  void set(TF_Code code, const std::string& text) { api().SetStatus(status_, code, text.c_str()); }
  std::string text() const { return api().Message(status_); }

 private:
  TF_Status* status_;
};

// A TF_Tensor that is deleted with its owner; deleting gives up a reference, not the memory.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TF_Tensor* tensor) : tensor_(tensor) {}
  ~Tensor() {
    if (tensor_) api().DeleteTensor(tensor_);
  }
  Tensor(Tensor&& other) noexcept : tensor_(other.tensor_) { other.tensor_ = nullptr; }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  TF_Tensor* get() const { return tensor_; }
  size_t bytes() const { return api().TensorByteSize(tensor_); }
  // Null for a tensor without elements.
  void* data() const { return bytes() ? api().TensorData(tensor_) : nullptr; }

 private:
  TF_Tensor* tensor_ = nullptr;
};

}  // namespace hdp::tf
#endif

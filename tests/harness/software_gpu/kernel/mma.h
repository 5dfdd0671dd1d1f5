// Matrix products of a warp (`nvcuda::wmma`): lane l of 32 holds elements l, l + 32, … of each fragment.
//
// How a device shares a fragment out among lanes is not specified, so that correct kernels do not depend on it.
// Products are added up in float, or double, and rounded once to the accumulator's type.
#pragma once

namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }

template <class Use, int M, int N, int K> struct gpu_extents;
template <int M, int N, int K> struct gpu_extents<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct gpu_extents<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct gpu_extents<accumulator, M, N, K> { enum { rows = M, columns = N }; };
template <class T> struct gpu_stored { using type = T; };
template <> struct gpu_stored<precision::tf32> { using type = float; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using extents = gpu_extents<Use, M, N, K>;
  using element = typename gpu_stored<T>::type;
  static constexpr int num_elements = extents::rows * extents::columns / 32;
  element x[num_elements];
};

template <class Use, int M, int N, int K, class T, class Layout, class V>
static inline void fill_fragment(fragment<Use, M, N, K, T, Layout>& filled, V value) {
  for (auto& element : filled.x) element = value;
}

template <class F, class E>
static inline void gpu_load(F& loaded, const E* from, unsigned stride, bool is_row_major) {
  gpu_warp_barrier(~0u);
  for (int i = 0; i < F::num_elements; i++) {
    const unsigned at = i * 32 + gpu_lane(), row = at / F::extents::columns, column = at % F::extents::columns;
    loaded.x[i] = from[is_row_major ? row * stride + column : column * stride + row];
  }
  gpu_warp_barrier(~0u);
}
template <class Use, int M, int N, int K, class T, class Layout, class E>
static inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& loaded, const E* from, unsigned stride) {
  gpu_load(loaded, from, stride, std::is_same_v<Layout, row_major>);
}
template <int M, int N, int K, class T, class E>
static inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& loaded, const E* from, unsigned stride,
                                    layout_t layout) {
  gpu_load(loaded, from, stride, layout == mem_row_major);
}
template <int M, int N, int K, class T, class E>
static inline void store_matrix_sync(E* to, const fragment<accumulator, M, N, K, T>& stored, unsigned stride,
                                     layout_t layout) {
  gpu_warp_barrier(~0u);
  for (int i = 0; i < stored.num_elements; i++) {
    const unsigned at = i * 32 + gpu_lane(), row = at / N, column = at % N;
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = stored.x[i];
  }
  gpu_warp_barrier(~0u);
}

template <int M, int N, int K, class TA, class LA, class TB, class LB, class TD, class TC>
GPU_UNCHECKED void mma_sync(fragment<accumulator, M, N, K, TD>& result,
                                          const fragment<matrix_a, M, N, K, TA, LA>& left,
                                          const fragment<matrix_b, M, N, K, TB, LB>& right,
                                          const fragment<accumulator, M, N, K, TC>& added) {
  using A = fragment<matrix_a, M, N, K, TA, LA>;
  using B = fragment<matrix_b, M, N, K, TB, LB>;
  using Sum = std::conditional_t<std::is_integral_v<TD>, int, std::conditional_t<std::is_same_v<TD, double>, double, float>>;
  const std::pair<const A*, const B*> own = {&left, &right};
  gpu_warp_slots()[gpu_lane()] = uint64_t(&own);
  gpu_warp_barrier(~0u);
  const std::pair<const A*, const B*>* lanes[32];
  for (int lane = 0; lane < 32; lane++) lanes[lane] = (decltype(&own))gpu_warp_slots()[lane];
  Sum sums[fragment<accumulator, M, N, K, TD>::num_elements];
  for (int i = 0; i < result.num_elements; i++) {
    const unsigned at = i * 32 + gpu_lane(), row = at / N, column = at % N;
    Sum sum = Sum(added.x[i]);
    for (unsigned k = 0; k < K; k++) {
      const unsigned a = row * K + k, b = k * N + column;
      sum += Sum(lanes[a % 32]->first->x[a / 32]) * Sum(lanes[b % 32]->second->x[b / 32]);
    }
    sums[i] = sum;
  }
  gpu_warp_barrier(~0u);
  for (int i = 0; i < result.num_elements; i++) result.x[i] = sums[i];
}
}  // namespace nvcuda::wmma

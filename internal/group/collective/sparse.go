// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/tensor"
)

// sparseSum is an all-reduce of a sparse tensor. It consists of three all-gathers, each of which depends on what the one before
// has brought: what every rank has, their indices, their values. Then every rank adds them up by itself. Run what [sparseSum.Request]
// returns for each of [SparseStages], then call [sparseSum.Finish].
//
// A [Refusal] on the way comes on all ranks at the same place: they are in step, and the group goes on.
type sparseSum struct {
	g        *Group
	call     *Call
	to       *tensor.Sparse // the caller's
	own      *tensor.Sparse // coalesced
	refusal  *Refusal       // that the PyTorch ranks come to on the way
	requests [SparseStages]Request
	counts   []int // of the indices of every rank
}

// SparseStages is the number of exchanges.
const SparseStages = 3

// The exchanges.
const (
	sparseSizes = iota
	sparseIndices
	sparseValues
)

// A rank describes its tensor in words: the sizes of up to four dimensions with indices, of up to four without, the number of
// indices; that is all for PyTorch. Go ranks add the type of the values and the number of dimensions of both kinds.
const (
	wordCount = 2 * torchcaps.MaxSparseDims
	wordDType = wordCount + 1
)

// maxSparse bounds the memory for what other ranks announce.
const maxSparse = 1 << 36

// AllReduceSparse prepares the sum of s over all ranks, which replaces the indices and values of s in the end.
func (g *Group) AllReduceSparse(c *Call, s *tensor.Sparse, op reduce.Op) (*sparseSum, error) {
	const name = "group: all_reduce (sparse)"
	if s == nil {
		return nil, cohort.New(name, cohort.InvalidArgument, "no tensor")
	}
	if err := s.Check(); err != nil {
		return nil, cohort.Wrap(name, cohort.InvalidArgument, err)
	}
	dt := s.Values.DType()
	x := &sparseSum{g: g, call: c, to: s}
	err := g.Peers.Check(name, torchcaps.Call{
		Op: torchcaps.AllReduce, DType: dt, Reduce: op,
		Sparse: &torchcaps.Sparse{Indexed: sparseops.SparseDims(s), Dense: s.Values.Dims() - 1},
	})
	if err = refusal(err); err != nil {
		r, ok := errors.AsType[*Refusal](err)
		if ok {
			r.Sparse = s
		}
		if !ok || r.Where != torchcaps.BeforeValues && r.Where != torchcaps.BeforeSum {
			return nil, err
		}
		x.refusal = r
	}
	if g.Peers.None() {
		if err = refuseSparse(name, s, op); err != nil {
			return nil, err
		}
	}
	if x.own, err = sparseops.Coalesce(s); err != nil {
		return nil, err
	}
	x.describe()
	c.Sparse, c.Parts = s, 1
	if g.Peers.None() {
		c.Parts = SparseStages // exchanges of Go ranks have a tag each
	}
	// For those who look at the operation; what runs are the requests of the stages.
	values, err := x.own.Values.Contiguous()
	if err != nil {
		return nil, err
	}
	c.Request.Kind, c.Request.Op, c.Request.DType = AllReduce, op, dt
	c.Request.In, err = values.Bytes()
	return x, err
}

// refuseSparse is what Go ranks refuse among themselves.
func refuseSparse(name string, s *tensor.Sparse, op reduce.Op) error {
	switch {
	case op != reduce.Sum:
		return cohort.Newf(name, cohort.InvalidArgument,
			"unsupported reduction operation %v (allreduce of sparse tensors only works with ReduceOp.SUM)", op)
	case sparseops.SparseDims(s) > torchcaps.MaxSparseDims || s.Values.Dims()-1 > torchcaps.MaxSparseDims:
		return cohort.Newf(name, cohort.InvalidArgument,
			"shape %v with %d dimensions that have indices: at most %d have them, and %d have none, as in PyTorch",
			s.Shape, sparseops.SparseDims(s), torchcaps.MaxSparseDims, torchcaps.MaxSparseDims)
	case !reduce.Carries(s.Values.DType()):
		return cohort.Newf(name, cohort.NotSupported, "groups do not carry %v; convert the values", s.Values.DType())
	}
	return nil
}

// describe makes the first request.
func (x *sparseSum) describe() {
	dt, indexed := x.own.Values.DType(), sparseops.SparseDims(x.own)
	dense := x.own.Shape[indexed:]
	if dt.Complex() && !x.g.Peers.None() {
		dense = append(slices.Clone(dense), 2) // pairs of real numbers
	}
	words := slices.Concat(sizeWords(x.own.Shape[:indexed]), sizeWords(dense), []int64{int64(x.own.Values.Dim(0))})
	if x.g.Peers.None() {
		words = append(words, int64(dt), int64(indexed), int64(len(dense)))
	}
	in := make([]byte, 0, 8*len(words))
	for _, w := range words {
		in = binary.LittleEndian.AppendUint64(in, uint64(w)) //nolint:gosec // the bits
	}
	x.requests[sparseSizes] = Request{Kind: AllGather, DType: tensor.Int64, In: in, Out: make([]byte, x.g.Size*len(in))}
}

// sizeWords are sizes of at most four dimensions, and zeros.
func sizeWords(sizes []int) []int64 {
	words := make([]int64, 0, torchcaps.MaxSparseDims)
	for _, n := range sizes {
		words = append(words, int64(n))
	}
	return words[:torchcaps.MaxSparseDims]
}

// Request returns what to run in a stage, the same again if it is asked again. The stages come in their order.
func (x *sparseSum) Request(stage int) (*Request, error) {
	r := &x.requests[stage]
	if stage > sparseSizes && r.Out == nil {
		if err := x.prepare(stage); err != nil {
			return nil, err
		}
	}
	r.Tag, r.Timeout = x.call.Request.Tag, x.call.Request.Timeout
	if x.g.Peers.None() {
		r.Tag += uint32(stage) //nolint:gosec // less than SparseStages
	} else {
		r.More = stage < sparseValues
	}
	return r, nil
}

// prepare makes the request of a stage from what the first has brought.
func (x *sparseSum) prepare(stage int) error {
	own, dt := x.own.Indices, tensor.Int64
	if stage == sparseIndices {
		if err := x.compare(); err != nil {
			return err
		}
	} else {
		if x.refusal != nil && x.refusal.Where == torchcaps.BeforeValues {
			return x.refusal
		}
		own, dt = x.own.Values, x.own.Values.DType()
	}
	own, err := own.Contiguous()
	if err != nil {
		return err
	}
	in, err := own.Bytes()
	if err != nil {
		return err
	}
	width := dt.Size() // bytes of one index or one value
	for d, n := range own.Shape() {
		if stage == sparseIndices && d == 0 || stage == sparseValues && d > 0 {
			width *= n
		}
	}
	counts := make([]int, x.g.Size)
	total := uint64(0)
	for rank, n := range x.counts {
		high, size := bits.Mul64(uint64(n), uint64(width)) //nolint:gosec // neither is negative
		if total += size; high != 0 || size > maxSparse || total > maxSparse || total > math.MaxInt {
			return x.fault(cohort.Rank(rank), cohort.TooLarge, "it announces %d indices of %d bytes: at most %d bytes are taken",
				n, width, uint64(maxSparse))
		}
		counts[rank] = int(size)
	}
	if total == 0 && !x.g.Peers.KnowsEmptyGathers() {
		return x.fault(x.g.Rank, cohort.NotSupported,
			"no rank has indices or values, and it depends on the version of PyTorch what is exchanged then: say which with %s",
			torchcaps.Option)
	}
	x.requests[stage] = Request{Kind: AllGatherV, DType: dt, In: in, Out: make([]byte, total), OutCounts: counts}
	return nil
}

func (x *sparseSum) fault(rank cohort.Rank, code cohort.Code, format string, args ...any) error {
	e := cohort.Newf("group: all_reduce (sparse)", code, format, args...)
	e.Rank = rank
	return e
}

// compare looks at what the ranks have.
func (x *sparseSum) compare() error {
	all, own := x.requests[sparseSizes].Out, x.requests[sparseSizes].In
	words := make([][]int64, x.g.Size)
	for rank := range words {
		for at := 0; at < len(own); at += 8 {
			words[rank] = append(words[rank], int64(binary.LittleEndian.Uint64(all[rank*len(own)+at:]))) //nolint:gosec // the bits
		}
	}
	mine := words[x.g.Rank]
	x.counts = make([]int, x.g.Size)
	rows := uint64(1) // a coalesced tensor has no more indices than this
	for _, n := range x.own.Shape[:sparseops.SparseDims(x.own)] {
		high, low := bits.Mul64(rows, uint64(n)) //nolint:gosec // not negative
		if rows = low; high != 0 {
			rows = math.MaxUint64
			break
		}
	}
	if err := x.sameSizes(words); err != nil {
		return err
	}
	for rank, theirs := range words {
		if !slices.Equal(described(theirs), described(mine)) {
			return x.fault(cohort.Rank(rank), cohort.Mismatch,
				"it has a tensor of sizes %v, with indices in some dimensions that have none in this rank's, or the other way "+
					"round", torchSizes(theirs))
		}
		n := theirs[wordCount]
		if n < 0 || uint64(n) > rows || n > math.MaxInt {
			return x.fault(cohort.Rank(rank), cohort.Protocol, "it announces %d indices of a tensor of shape %v", n, x.own.Shape)
		}
		x.counts[rank] = int(n)
	}
	return nil
}

// sameSizes refuses tensors that differ where all ranks see that they do: PyTorch's compare the sizes that are not zero, Go's
// among themselves everything.
func (x *sparseSum) sameSizes(words [][]int64) error {
	seen := torchSizes
	if x.g.Peers.None() {
		seen = described
	}
	mine := seen(words[x.g.Rank])
	for rank, theirs := range words {
		if slices.Equal(seen(theirs), mine) {
			continue
		}
		e := cohort.Newf("group: all_reduce (sparse)", cohort.Mismatch, "Sparse dimensions do not match: rank %d has %s, this rank %s",
			rank, sparseText(theirs), sparseText(words[x.g.Rank]))
		e.Rank = cohort.Rank(rank)
		return &Refusal{Reason: e, Where: torchcaps.AtTheWait}
	}
	return nil
}

// described is what a rank says of its tensor, without the number of indices.
func described(words []int64) []int64 {
	return slices.Delete(slices.Clone(words), wordCount, wordCount+1)
}

// torchSizes are the sizes that PyTorch compares.
func torchSizes(words []int64) (sizes []int64) {
	for _, part := range [][]int64{words[:torchcaps.MaxSparseDims], words[torchcaps.MaxSparseDims:wordCount]} {
		for _, n := range part {
			if n <= 0 {
				break
			}
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// sparseText describes the tensor of a rank.
func sparseText(words []int64) string {
	text := fmt.Sprint(torchSizes(words))
	if len(words) > wordDType {
		if dt := tensor.DType(min(max(words[wordDType], 0), math.MaxUint8)); dt.Valid() {
			text = dt.String() + text
		}
	}
	return text
}

// Finish adds up what the ranks have sent.
func (x *sparseSum) Finish() error {
	parts := make([]*tensor.Sparse, x.g.Size)
	index, values := x.requests[sparseIndices].Out, x.requests[sparseValues].Out
	indexed, some := sparseops.SparseDims(x.own), 0
	for rank, n := range x.counts {
		ni, nv := x.requests[sparseIndices].OutCounts[rank], x.requests[sparseValues].OutCounts[rank]
		part := &tensor.Sparse{Shape: x.own.Shape}
		var err error
		if part.Indices, err = wrapped(index[:ni], tensor.Int64, []int{indexed, n}); err != nil {
			return err
		}
		if part.Values, err = wrapped(values[:nv], x.own.Values.DType(), append([]int{n}, x.own.Shape[indexed:]...)); err != nil {
			return err
		}
		index, values = index[ni:], values[nv:]
		parts[rank] = part
		if n > 0 {
			some++
		}
	}
	if x.refusal != nil && (some > 1 || x.own.Values.DType().Complex()) { // of one tensor alone PyTorch makes no sum
		return x.refusal
	}
	sum, err := sparseops.Total(parts...)
	if err != nil {
		return cohort.Wrap("group: all_reduce (sparse)", cohort.Protocol, err)
	}
	x.to.Indices, x.to.Values = sum.Indices, sum.Values
	x.call.Outputs = append(x.call.Outputs[:0], sum.Indices, sum.Values)
	return nil
}

func wrapped(data []byte, dt tensor.DType, shape []int) (*tensor.Tensor, error) {
	return tensor.FromStorage(tensor.WrapStorage(data, "heap", nil), dt, shape, nil, 0)
}

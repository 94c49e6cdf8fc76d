// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package collective describes one collective operation, so that every engine (gloo's pattern, the native algorithms, shared
// memory) takes the same request.
//
// [Group] turns the arguments of a call, tensors and options, into a [Call] with its request, and says what to do with the result.
// It refuses what does not fit, what no rank can do, and what the PyTorch ranks of the group cannot do or may do otherwise; a refusal of
// the last kind says how this rank stays in sync with them. Nothing here sends, and only Narrow may wait.
package collective

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Kind is the kind of a collective.
type Kind uint8

// The collectives. Buffers are contiguous bytes; n is the group's size.
const (
	AllReduce     Kind = iota // Out: in and out
	Broadcast                 // Out: in at Root, out elsewhere
	Reduce                    // Out: in, and out at Root; other ranks' Out is left as it was
	AllGather                 // In: own block; Out: n blocks
	AllGatherV                // In: own block; Out: blocks of OutCounts[i] bytes
	Gather                    // In: own block; Out at Root: blocks of OutCounts[i] bytes (nil: n equal blocks)
	Scatter                   // In at Root: blocks of InCounts[i] bytes (nil: n equal blocks); Out: own block
	ReduceScatter             // In: blocks of InCounts[i] bytes (nil: n equal blocks); Out: own reduced block
	AllToAll                  // In: blocks of InCounts[i] bytes (nil: equal); Out: blocks of OutCounts[i]
	Barrier                   // no buffers
)

var kindNames = [...]string{
	"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_v", "gather", "scatter",
	"reduce_scatter", "all_to_all", "barrier",
}

// String returns PyTorch's name of the collective.
func (k Kind) String() string { return kindNames[k] }

// Reduces reports whether the collective has an operator.
func (k Kind) Reduces() bool { return k == AllReduce || k == Reduce || k == ReduceScatter }

// Rooted reports whether the collective has a root.
func (k Kind) Rooted() bool { return k == Broadcast || k == Reduce || k == Gather || k == Scatter }

// Request is one collective as one rank sees it. It was validated: lengths fit counts, sizes are multiples of the
// element size, Root is in range.
type Request struct {
	Kind      Kind
	Tag       uint32 // the group's collective counter
	Root      int
	DType     tensor.DType
	Complex   bool // the elements are the parts of complex numbers
	Op        reduce.Op
	In, Out   []byte
	InCounts  []int // bytes per rank
	OutCounts []int // bytes per rank
	Uneven    bool  // the blocks of a gather or scatter may differ in size; all ranks say so, but only the root knows the sizes
	PerBlock  bool  // gloo's reduce-scatter of lists: an all-reduce for each block, with tags from Tag on
	Shape     Shape // what all ranks must agree on beside the bytes; see [Shape]
	More      bool  // another request with the same tag follows, which belongs to the same operation
	Timeout   time.Duration
}

// Describe names the operator of a reduction and the type of the elements, "" where there is none, and returns the root, -1 where there is
// none.
func (r *Request) Describe() (operator, elements string, root int) {
	root = -1
	if r.Kind.Reduces() {
		operator = r.Op.String()
	}
	if r.Kind != Barrier {
		elements = r.DType.String()
	}
	if r.Kind.Rooted() {
		root = r.Root
	}
	return operator, elements, root
}

// Engine runs collectives of one group. Requests of one group may run concurrently; each has its own tag.
type Engine interface {
	Run(ctx context.Context, r *Request) error
}

// Interrupted is returned by an engine that can go on later; see [Resumable].
type Interrupted struct{ Cause error } //nolint:errname // it reads as what happened: errors.As(err, &coll.Interrupted{})

// Error says why.
func (i *Interrupted) Error() string { return "interrupted: " + i.Cause.Error() }

// Unwrap returns the context's error.
func (i *Interrupted) Unwrap() error { return i.Cause }

// Resumable marks an engine whose Run returns [*Interrupted] when ctx ends: the operation is still in progress, its buffers
// stay in use, and Run with the same request goes on, from whichever goroutine.
type Resumable interface{ Resumable() }

// Check refuses a request of rank in a group of size ranks whose buffers do not fit each other, before anything is sent. The
// group has checked it too; but a wrong length here would corrupt another process. where stands in front of errors.
func (r *Request) Check(where string, rank, size int) error {
	var bad string
	switch {
	case int(r.Kind) >= len(kindNames):
		return cohort.Newf(where+"run", cohort.NotSupported, "operation %d", r.Kind)
	case r.Root < 0 || r.Root >= size:
		return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument, "root %d of %d ranks", r.Root, size)
	case r.InCounts != nil && len(r.InCounts) != size, r.OutCounts != nil && len(r.OutCounts) != size:
		return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument, "%d and %d counts for %d ranks", len(r.InCounts),
			len(r.OutCounts), size)
	case (r.Kind == Gather || r.Kind == Scatter) && !r.Uneven && (!Even(r.InCounts) || !Even(r.OutCounts)):
		bad = "has uneven blocks without saying so"
	case r.Kind.Reduces() && !reduce.Supported(r.DType, r.Op):
		return cohort.Newf(where+r.Kind.String(), cohort.NotSupported, "%v of %v is not defined", r.Op, r.DType)
	case r.Kind.Reduces() && !r.wholeElements():
		bad = "is not whole elements of " + r.DType.String()
	case r.Kind > Reduce && !r.lengthsFit(rank, size): // the others have one buffer
		bad = "does not fit"
	default:
		return nil
	}
	return cohort.Newf(where+r.Kind.String(), cohort.InvalidArgument,
		"%d bytes in (counts %v) and %d bytes out (counts %v) for %d ranks: %s",
		len(r.In), r.InCounts, len(r.Out), r.OutCounts, size, bad)
}

func (r *Request) wholeElements() bool {
	size := r.DType.Size()
	if (len(r.In)|len(r.Out))%size != 0 {
		return false
	}
	for _, c := range r.InCounts {
		if c%size != 0 {
			return false
		}
	}
	return true
}

// lengthsFit reports whether the buffers have the lengths that the kind asks for.
func (r *Request) lengthsFit(rank, size int) bool {
	root := r.Root == rank
	in := func() int { return BlockSize(len(r.In), r.InCounts, size, rank) }
	out := func() int { return BlockSize(len(r.Out), r.OutCounts, size, rank) }
	switch r.Kind {
	case AllGather:
		return len(r.Out) == size*len(r.In)
	case AllGatherV:
		return r.OutCounts != nil && fits(len(r.Out), r.OutCounts, size) && out() == len(r.In)
	case Gather:
		return !root || fits(len(r.Out), r.OutCounts, size) && out() == len(r.In)
	case Scatter:
		return !root || fits(len(r.In), r.InCounts, size) && in() == len(r.Out)
	case ReduceScatter:
		return fits(len(r.In), r.InCounts, size) && in() == len(r.Out)
	case AllToAll:
		return fits(len(r.In), r.InCounts, size) && fits(len(r.Out), r.OutCounts, size) && in() == out()
	case AllReduce, Broadcast, Reduce, Barrier:
	}
	return true
}

// Group is what a request depends on beside its arguments.
type Group struct {
	Rank    cohort.Rank
	Size    int
	Peers   torchcaps.Peers                 // what the PyTorch ranks can do
	Narrow  func() (torchcaps.Peers, error) // asks again what they can do, before a call is refused because that is not known; or nil
	Detail  bool                            // shapes of flat buffers are compared too
	Checked bool                            // PyTorch ranks compare operations before they run
}

// Call is a collective that is ready to run. A zero Call, or one that was [Call.Reset], can be filled.
type Call struct {
	Factor  Factor // of a premultiplied sum; set before the Call is filled
	Request Request
	Outputs []*tensor.Tensor
	Finish  func() error      // after success: moves results to where the user wants them; or nil
	Subject [2]*tensor.Tensor // what a check before the operation compares
	Parts   int               // collectives that PyTorch ranks count for it; 0 for the usual one
	Sparse  *tensor.Sparse    // the subject of a [sparseSum], instead
	Pieces  []piece           // what to run one after the other instead of the request as a whole
}

// piece is one of several collectives that an operation consists of for PyTorch ranks. Each has a tag of its own.
type piece struct{ In, Out []byte }

// Reset empties the Call, and keeps its memory.
func (c *Call) Reset() { *c = Call{Outputs: c.Outputs[:0]} }

// Numbers is how many sequence numbers the operation takes.
func (c *Call) Numbers() uint32 { return uint32(max(c.Parts, 1)) } //nolint:gosec // a number of ranks or tensors

// TorchSteps is how far an operation moves the count that PyTorch 2.x puts into fingerprints. One that is made of steps and is no
// collective, a monitored barrier, counts the messages it consists of.
func (g *Group) TorchSteps(c *Call, steps bool) uint64 {
	switch {
	case c.Parts > 1:
		return uint64(c.Parts)
	case !steps, c.Parts == 1:
		return 1
	case g.Rank == 0:
		return 2 * uint64(g.Size-1) //nolint:gosec // at least one rank
	default:
		return 2
	}
}

// elements says of what type the elements of the buffers are, and whether they are the parts of complex numbers: Go ranks among
// themselves exchange complex numbers as such.
func (g *Group) elements(c *Call, dt tensor.DType) {
	c.Request.DType = dt
	if !g.Peers.None() {
		c.Request.DType = g.wireType(dt)
		c.Request.Complex = dt.Complex() && c.Request.DType != dt
	}
}

// wireType is the element type that the PyTorch ranks see: booleans are bytes to gloo, complex numbers pairs.
func (g *Group) wireType(dt tensor.DType) tensor.DType {
	if g.Peers.None() {
		return dt
	}
	if dt == tensor.Bool {
		return tensor.Uint8
	}
	return parts(dt)
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package collective describes one collective operation, so that every engine (gloo's pattern, the native algorithms, shared
// memory) takes the same request.
package collective

import (
	"context"
	"time"

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

var kindNames = [...]string{"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_v", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier"}

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

// Operator names the operator of a reduction; "" for other requests.
func (r *Request) Operator() string {
	if !r.Kind.Reduces() {
		return ""
	}
	return r.Op.String()
}

// RootRank is the root of a request that has one, else -1.
func (r *Request) RootRank() int {
	if !r.Kind.Rooted() {
		return -1
	}
	return r.Root
}

// Elements names the type of the elements; "" for a barrier, which has none.
func (r *Request) Elements() string {
	if r.Kind == Barrier {
		return ""
	}
	return r.DType.String()
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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"fmt"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// Op is an operation, by PyTorch's numbers (c10d::OpType).
type Op uint8

// The operations.
const (
	Broadcast                  Op = 0
	AllReduce                  Op = 1
	AllReduceCoalesced         Op = 2
	Reduce                     Op = 3
	AllGather                  Op = 4
	AllGatherInto              Op = 5
	AllGatherCoalesced         Op = 6
	Gather                     Op = 7
	Scatter                    Op = 8
	ReduceScatter              Op = 9
	AllToAllInto               Op = 10
	AllToAll                   Op = 11
	Send                       Op = 12
	Recv                       Op = 13
	RecvAny                    Op = 14
	Barrier                    Op = 15
	ReduceScatterInto          Op = 16
	ReduceScatterIntoCoalesced Op = 19
	AllGatherIntoCoalesced     Op = 20
	Unknown                    Op = 100
)

var names = [...]string{
	Broadcast: "broadcast", AllReduce: "all_reduce", AllReduceCoalesced: "all_reduce_coalesced", Reduce: "reduce", AllGather: "all_gather",
	AllGatherInto: "all_gather_into_tensor", AllGatherCoalesced: "all_gather_coalesced", Gather: "gather", Scatter: "scatter",
	ReduceScatter: "reduce_scatter", AllToAllInto: "all_to_all_single", AllToAll: "all_to_all", Send: "send", Recv: "recv",
	RecvAny: "recv_any",
	Barrier: "barrier", ReduceScatterInto: "reduce_scatter_tensor", ReduceScatterIntoCoalesced: "reduce_scatter_tensor_coalesced",
	AllGatherIntoCoalesced: "all_gather_into_tensor_coalesced", Unknown: "unknown",
}

// String returns the name of the operation in PyTorch's Python API.
func (o Op) String() string {
	if int(o) < len(names) && names[o] != "" {
		return names[o]
	}
	return "op(" + strconv.Itoa(int(o)) + ")"
}

// Call is an operation on tensors of a type; Reduce matters for reductions, Numel is the elements of one rank.
type Call struct {
	Op     Op
	DType  tensor.DType
	Reduce reduce.Op
	Numel  int
	Parts  int     // that take a tag each: the ranks, in a reduce_scatter of lists, or the tensors, in a coalesced one
	Sparse *Sparse // of an all_reduce of a sparse tensor
}

// Where is where PyTorch refuses a call.
type Where uint8

// The places.
const (
	// InPython is before the process group learns of it. Nothing is taken.
	InPython Where = iota
	// AtTheCall is in the process group. No tag is taken, but a check of operations was made.
	AtTheCall
	// AtTheWait is in the worker thread. The tags are taken.
	AtTheWait
	// BeforeValues is in the worker thread that has exchanged the sizes and the indices of sparse tensors.
	BeforeValues
	// BeforeSum is there, too, when the values have been exchanged.
	BeforeSum
	// Nowhere: PyTorch runs it, as something else than it was asked for, or fails after the exchange, or may run it.
	Nowhere
)

// outcome is what PyTorch does with a call. The zero value means that it runs it.
type outcome struct {
	refused bool
	where   Where
	tags    int    // that the call takes although it is refused
	why     string // the text of the error
}

func refuse(where Where, why string) outcome {
	o := outcome{refused: true, where: where, why: why}
	if where == AtTheWait || where == BeforeValues || where == BeforeSum {
		o.tags = 1
	}
	return o
}

// base reports whether the level's gloo has the type in all operations.
func (l Level) base(dt tensor.DType) bool {
	switch dt {
	case tensor.Float32, tensor.Float64, tensor.Float16, tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64:
		return true
	case tensor.BFloat16, tensor.Bool:
		return l >= V2_6
	default:
		return false
	}
}

func floating(dt tensor.DType) bool {
	return dt == tensor.Float16 || dt == tensor.BFloat16 || dt == tensor.Float32 || dt == tensor.Float64 || dt.Complex()
}

// noType is the error of every version for a type that gloo does not have: in its worker, when the tag is taken.
func noType(c *Call) outcome {
	return refuse(AtTheWait, fmt.Sprintf("has no %s of %v; convert the tensor", c.Op.String(), c.DType))
}

// outcome is the table. It was read off real processes; the tests with PyTorch hold every cell against them.
func (l Level) outcome(c *Call) outcome {
	complexNumbers := c.DType.Complex()
	if c.Sparse != nil {
		return l.sparseSum(c)
	}
	switch c.Op {
	case AllReduce, AllReduceCoalesced:
		if complexNumbers && !addsComplex(c.Reduce) {
			return refuse(InPython, fmt.Sprintf("has no %v of complex numbers", c.Reduce))
		}
		return l.reduction(c, true)
	case Reduce:
		return l.reduction(c, l >= V2_9)
	case ReduceScatterInto, ReduceScatter, ReduceScatterIntoCoalesced:
		return l.reduceScatter(c)
	case Broadcast:
		if complexNumbers && l >= V2_9 {
			return outcome{}
		}
	case AllGather, AllGatherInto, AllGatherCoalesced, AllGatherIntoCoalesced:
		if c.Op == AllGatherIntoCoalesced && l == V1_13 {
			return refuse(AtTheCall, "has no "+c.Op.String())
		}
		if c.Numel == 0 && l == V1_13 {
			return refuse(AtTheWait, "ends its process with a division by zero in an all_gather of empty tensors")
		}
		if complexNumbers {
			return outcome{}
		}
	case AllToAllInto, Scatter:
		if complexNumbers {
			return outcome{}
		}
	case AllToAll:
		if l < V2_12 {
			return refuse(AtTheCall, "has no all_to_all of lists; use all_to_all_single")
		}
		if complexNumbers {
			return outcome{}
		}
	case Send, Recv, RecvAny, Barrier, Unknown:
		return outcome{}
	case Gather: // complex numbers were forgotten in all versions
	}
	if !l.base(c.DType) {
		return noType(c)
	}
	return outcome{}
}

// addsComplex reports whether Python lets complex numbers pass to an all-reduce with this operator.
func addsComplex(op reduce.Op) bool {
	return op == reduce.Sum || op == reduce.Avg || op == reduce.PremulSum
}

// reduction is what all reductions have in common. complexNumbers reports whether the operation takes them.
func (l Level) reduction(c *Call, complexNumbers bool) outcome {
	if c.DType.Complex() {
		switch {
		case !complexNumbers:
			return noType(c)
		case c.Reduce == reduce.Sum, c.Reduce == reduce.Avg && l >= V2_8:
			return outcome{}
		}
		return refuse(AtTheWait, fmt.Sprintf("has no %v of complex numbers", c.Reduce))
	}
	if !l.base(c.DType) {
		return noType(c)
	}
	switch c.Reduce {
	case reduce.Avg:
		switch {
		case l < V2_8:
			return refuse(AtTheWait, "has no average; sum and divide")
		case !floating(c.DType):
			return refuse(Nowhere,
				fmt.Sprintf("cannot store an average as %v, and says so after it has exchanged the sum; sum and divide", c.DType))
		}
	case reduce.PremulSum:
		return refuse(AtTheWait, "has no premultiplied sum; multiply and sum")
	case reduce.And, reduce.Or, reduce.Xor:
		if floating(c.DType) {
			return refuse(AtTheWait, fmt.Sprintf("has no %v of %v", c.Reduce, c.DType))
		}
	case reduce.Sum, reduce.Product, reduce.Min, reduce.Max:
	}
	return outcome{}
}

func (l Level) reduceScatter(c *Call) outcome {
	switch {
	case l == V1_13, c.Op == ReduceScatter && l < V2_8:
		return refuse(AtTheCall, "has no "+c.Op.String())
	case l < V2_9:
		if !l.base(c.DType) {
			return c.each(noType(c))
		}
		if c.Reduce != reduce.Sum {
			return refuse(Nowhere, "sums in "+c.Op.String()+" whatever the operator is; use all_reduce")
		}
		return outcome{}
	}
	return c.each(l.reduction(c, true))
}

// each is the outcome of a call that consists of parts.
func (c *Call) each(o outcome) outcome {
	if o.refused && c.Op != ReduceScatterInto {
		o.tags *= c.Parts
	}
	return o
}

// Refusal is why a call is not run, and what this rank must do to stay in step. It is the cause of the error that [Peers.Check]
// returns.
type Refusal struct { //nolint:errname // it reads as what happened
	Where Where
	Tags  int // that PyTorch's ranks take for it although they refuse it
}

// Error reports what it means for the group.
func (r *Refusal) Error() string {
	if r.Where == Nowhere {
		return "the PyTorch ranks run it, or may run it, so the group cannot go on"
	}
	return "refused as on the PyTorch ranks"
}

// Option and Variable set the peers' version where it cannot be found out.
const (
	Option   = "group.WithPeers"
	Variable = "COHORT_TORCH"
)

// Check returns nil if all ranks run the call alike, and why not otherwise.
func (p Peers) Check(name string, c Call) error {
	if p.None() {
		return nil
	}
	first := p.Low.outcome(&c)
	same := true
	for l := p.Low + 1; l <= p.High; l++ {
		o := l.outcome(&c)
		same = same && o.refused == first.refused && o.where == first.where && o.tags == first.tags
	}
	halves := c.DType == tensor.Float16 && c.reduces() && c.Sparse == nil && p.Low < V2_8 && p.High >= V2_8
	switch {
	case same && !halves && first.refused:
		e := cohort.Newf(name, cohort.NotSupported, "gloo of %v, which other ranks use, %s", p, first.why)
		e.Err = &Refusal{Where: first.where, Tags: first.tags}
		return e
	case same && !halves && !p.silently(&c):
		return nil
	}
	what := c.Op.String() + " of " + c.DType.String()
	if c.reduces() {
		what = c.Op.String() + " (" + c.Reduce.String() + ") of " + c.DType.String()
	}
	e := cohort.Newf(name, cohort.NotSupported, "%s depends on the version of PyTorch, %s", what, p.Unsure())
	e.Err = &Refusal{Where: Nowhere}
	return e
}

// silently reports whether ranks of a version that is only taken to be that of the store's host may compute something else than this one,
// and report nothing.
func (p Peers) silently(c *Call) bool {
	for l := V2_6; p.Assumed && l <= Newest; l++ {
		if o := l.outcome(c); o.refused && o.where == Nowhere {
			return true
		}
	}
	return false
}

func (c *Call) reduces() bool {
	switch c.Op {
	case AllReduce, AllReduceCoalesced, Reduce, ReduceScatter, ReduceScatterInto, ReduceScatterIntoCoalesced:
		return true
	default:
		return false
	}
}

// TorchHalves reports whether the peers compute float16 as torch does; gloo's own arithmetic before that has other NaNs and a
// fault. Peers of which that is not known refuse reductions of float16.
func (p Peers) TorchHalves() bool { return p.Low >= V2_8 }

// CountsHashedGroups reports whether a group made with local synchronization moves the counter behind the names of groups, and is
// named by it.
func (p Peers) CountsHashedGroups() bool { return p.Low >= V2_14 }

// KnowsHashedGroups reports whether CountsHashedGroups is the same for all that the peers may be.
func (p Peers) KnowsHashedGroups() bool { return p.None() || p.Low >= V2_14 || p.High < V2_14 }

// SplitsGroups reports whether some of the versions that the peers may be can split and merge groups: 2.11 can, and is not told
// apart from 2.9. A rank that cannot will not have asked for it.
func (p Peers) SplitsGroups() bool {
	return p.None() || p.High >= V2_9 && (p.Low >= V2_9 || !p.Several)
}

// OrdersGroups reports whether the ranks of a group can be numbered in any order.
func (p Peers) OrdersGroups() bool { return p.None() || p.Low >= V2_14 }

// The orders in which versions of PyTorch make the groups of a device mesh: by the last dimension first, with that of the group
// in its place, up to 2.9; by the first dimension first from 2.10 on.
const (
	LastFirst meshOrder = iota
	FirstFirst
	AnyMeshOrder
)

// MeshOrder is an order of the groups of a device mesh.
type meshOrder uint8

// MeshOrder returns the order of these ranks.
func (p Peers) MeshOrder() meshOrder {
	switch {
	case p.None(), p.Low >= V2_10:
		return FirstFirst
	case p.High <= V2_9:
		return LastFirst
	}
	return AnyMeshOrder
}

// PairsComplex reports whether PyTorch's Python layer hands complex numbers to an operation as pairs of real ones: to all but those
// that refuse them, or take them as they are.
func (p Peers) PairsComplex(op Op) bool {
	switch op {
	case Reduce, Gather, ReduceScatter, ReduceScatterInto:
		return false
	case Broadcast:
		return p.Low >= V2_9
	default:
		return true
	}
}

// MaxSparseDims is how many dimensions with indices a sparse tensor may have in an all_reduce, and how many without.
const MaxSparseDims = 4

// Sparse is what matters of a sparse tensor, beside its type.
type Sparse struct{ Indexed, Dense int } // dimensions with indices, and those of the values

// sparseSum is the part of the table for an all_reduce of a sparse tensor: an exchange of sizes, one of indices and one of values,
// with one tag for all. PyTorch finds out between them what it cannot do.
func (l Level) sparseSum(c *Call) outcome {
	dense := c.Sparse.Dense
	if c.DType.Complex() {
		if !addsComplex(c.Reduce) || l < V2_11 { // view_as_real, which all_reduce uses, takes sparse tensors from 2.11 on
			return refuse(InPython, "has no sparse tensors of complex numbers in all_reduce")
		}
		dense++ // pairs of real numbers
	}
	switch {
	case c.Reduce != reduce.Sum:
		return refuse(AtTheCall, "only sums sparse tensors")
	case c.Sparse.Indexed > MaxSparseDims || dense > MaxSparseDims:
		return refuse(AtTheWait, fmt.Sprintf("sums sparse tensors with at most %d dimensions with indices and %d without",
			MaxSparseDims, MaxSparseDims))
	}
	why := fmt.Sprintf("cannot sum sparse tensors of %v", c.DType)
	switch c.DType {
	case tensor.Float32, tensor.Float64, tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64:
		return outcome{}
	case tensor.Complex64, tensor.Complex128:
		return refuse(BeforeSum, "exchanges sparse complex numbers, and leaves the tensors as they were")
	case tensor.BFloat16:
		if l >= V2_6 {
			return outcome{}
		}
		return refuse(BeforeValues, why)
	case tensor.Float16:
		return refuse(BeforeSum, why)
	case tensor.Bool:
		if l >= V2_6 {
			return refuse(BeforeSum, why)
		}
		return refuse(BeforeValues, why)
	case tensor.Int16:
		return refuse(BeforeValues, why)
	default: // not even made coalesced
		return refuse(AtTheWait, why)
	}
}

// EmptyGathers reports whether ranks that gather nothing exchange empty messages, as gloo did before 2023.
func (p Peers) EmptyGathers() bool { return p.High == V1_13 }

// KnowsEmptyGathers reports whether EmptyGathers is the same for all that the peers may be.
func (p Peers) KnowsEmptyGathers() bool { return p.Low != V1_13 || p.High == V1_13 }

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
)

// ReduceOp is a reduction operator. It corresponds to torch.distributed.ReduceOp.
type ReduceOp uint8

// The operators. And, Or and Xor work on integers and booleans, the others on all element types that have the operation
// (complex numbers have no minimum and no maximum). Avg is a sum divided by the number of ranks at the end. PremulSum
// first multiplies each rank's tensor by the factor of [WithFactor], which each rank chooses for itself, and then sums.
//
// Of two elements Min and Max keep the first unless the second is strictly less or greater, as in gloo. So if one of them is
// NaN, the result may be NaN or a number: that depends on the order in which a transport takes the ranks. With PyTorch ranks it
// is what PyTorch computes, and on every transport all ranks get the same.
const (
	Sum     = ReduceOp(reduce.Sum)
	Product = ReduceOp(reduce.Product)
	Min     = ReduceOp(reduce.Min)
	Max     = ReduceOp(reduce.Max)
	And     = ReduceOp(reduce.And) // PyTorch's BAND
	Or      = ReduceOp(reduce.Or)  // PyTorch's BOR
	Xor     = ReduceOp(reduce.Xor) // PyTorch's BXOR
	Avg     = ReduceOp(reduce.Avg)
	// PremulSum is PyTorch's PREMUL_SUM, for floating-point and complex numbers. No version of PyTorch's gloo supports it.
	PremulSum = ReduceOp(reduce.PremulSum)
)

// String returns PyTorch's name of the operator, in lower case.
func (o ReduceOp) String() string { return reduce.Op(o).String() }

// OpType is the kind of an operation. The numbers are those of PyTorch's c10d::OpType.
type OpType uint8

// The operations.
const (
	OpBroadcast                  = OpType(torchcaps.Broadcast)
	OpAllReduce                  = OpType(torchcaps.AllReduce)
	OpAllReduceCoalesced         = OpType(torchcaps.AllReduceCoalesced)
	OpReduce                     = OpType(torchcaps.Reduce)
	OpAllGather                  = OpType(torchcaps.AllGather)
	OpAllGatherInto              = OpType(torchcaps.AllGatherInto)
	OpAllGatherCoalesced         = OpType(torchcaps.AllGatherCoalesced)
	OpGather                     = OpType(torchcaps.Gather)
	OpScatter                    = OpType(torchcaps.Scatter)
	OpReduceScatter              = OpType(torchcaps.ReduceScatter)
	OpAllToAllInto               = OpType(torchcaps.AllToAllInto)
	OpAllToAll                   = OpType(torchcaps.AllToAll)
	OpSend                       = OpType(torchcaps.Send)
	OpRecv                       = OpType(torchcaps.Recv)
	OpRecvAny                    = OpType(torchcaps.RecvAny)
	OpBarrier                    = OpType(torchcaps.Barrier)
	OpReduceScatterInto          = OpType(torchcaps.ReduceScatterInto)
	OpReduceScatterIntoCoalesced = OpType(torchcaps.ReduceScatterIntoCoalesced)
	OpAllGatherIntoCoalesced     = OpType(torchcaps.AllGatherIntoCoalesced)
	OpUnknown                    = OpType(torchcaps.Unknown)
)

// String returns the name of the operation in PyTorch's Python API.
func (o OpType) String() string { return torchcaps.Op(o).String() }

// p2p reports whether the operation is a message between two ranks.
func (o OpType) p2p() bool { return o == OpSend || o == OpRecv || o == OpRecvAny }

// opName is the name of an operation. A sparse sum is told apart, as PyTorch's flight recorder does.
func opName(w *Work) string {
	if w.op == OpAllReduce && w.call.Sparse != nil {
		return "sparse_all_reduce"
	}
	return torchcaps.Op(w.op).String()
}

// String names the group, its transport and its state: "group 0: rank 2 of 4 over shm, 17 collectives".
func (g *Group) String() string {
	if g == nil {
		return "nil group"
	}
	text := "group " + g.name + ": rank " + g.rank.String() + " of " + strconv.Itoa(g.size) + " over " + string(g.Transport()) + ", " +
		strconv.FormatUint(g.Seq(), 10) + " collectives"
	if err := g.Err(); err != nil {
		text += ", ended: " + err.Error()
	}
	return text
}

// String names the operation and its state: "all_reduce 17 of group 0: complete in 1.2ms".
func (w *Work) String() string {
	text := w.name()
	switch {
	case !w.Completed():
		return text + ": running"
	case w.outcome.err != nil:
		return text + ": " + w.outcome.err.Error()
	default:
		return text + ": complete in " + w.Duration().Round(time.Microsecond).String()
	}
}

// name says which operation this is.
func (w *Work) name() string {
	if w.group == nil {
		return w.op.String()
	}
	return w.op.String() + " " + strconv.FormatUint(w.seq, 10) + " of group " + w.group.name
}

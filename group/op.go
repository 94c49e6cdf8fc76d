// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
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

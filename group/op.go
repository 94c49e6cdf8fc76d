// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"strconv"

	"github.com/cohort-dist/cohort/internal/reduce"
)

// ReduceOp is a reduction operator. It corresponds to torch.distributed.ReduceOp.
type ReduceOp uint8

// The operators. And, Or and Xor work on integers and booleans, the others on all element types that have the operation
// (complex numbers have no minimum and no maximum). Avg is a sum that is divided by the number of ranks at the end.
const (
	Sum     = ReduceOp(reduce.Sum)
	Product = ReduceOp(reduce.Product)
	Min     = ReduceOp(reduce.Min)
	Max     = ReduceOp(reduce.Max)
	And     = ReduceOp(reduce.And) // PyTorch's BAND
	Or      = ReduceOp(reduce.Or)  // PyTorch's BOR
	Xor     = ReduceOp(reduce.Xor) // PyTorch's BXOR
	Avg     = ReduceOp(reduce.Avg)
)

// String returns PyTorch's name of the operator, in lower case.
func (o ReduceOp) String() string {
	if op := reduce.Op(o); op.Valid() {
		return op.String()
	}
	return "reduce_op(" + strconv.Itoa(int(o)) + ")"
}

// OpType is the kind of an operation. The numbers are those of PyTorch's c10d::OpType.
type OpType uint8

// The operations.
const (
	OpBroadcast         OpType = 0
	OpAllReduce         OpType = 1
	OpAllReduceCoalesce OpType = 2
	OpReduce            OpType = 3
	OpAllGather         OpType = 4
	OpAllGatherInto     OpType = 5
	OpGather            OpType = 7
	OpScatter           OpType = 8
	OpReduceScatter     OpType = 9
	OpAllToAllInto      OpType = 10
	OpAllToAll          OpType = 11
	OpSend              OpType = 12
	OpRecv              OpType = 13
	OpRecvAny           OpType = 14
	OpBarrier           OpType = 15
	OpReduceScatterInto OpType = 16
	OpUnknown           OpType = 100
)

var opNames = map[OpType]string{
	OpBroadcast: "broadcast", OpAllReduce: "all_reduce", OpAllReduceCoalesce: "all_reduce_coalesced", OpReduce: "reduce",
	OpAllGather: "all_gather", OpAllGatherInto: "all_gather_into_tensor", OpGather: "gather", OpScatter: "scatter",
	OpReduceScatter: "reduce_scatter", OpAllToAllInto: "all_to_all_single", OpAllToAll: "all_to_all", OpSend: "send",
	OpRecv: "recv", OpRecvAny: "recv_any", OpBarrier: "barrier", OpReduceScatterInto: "reduce_scatter_tensor",
	OpUnknown: "unknown",
}

// String returns the name of the operation in PyTorch's Python API.
func (o OpType) String() string {
	if name, ok := opNames[o]; ok {
		return name
	}
	return "op(" + strconv.Itoa(int(o)) + ")"
}

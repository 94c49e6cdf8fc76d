// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"github.com/cohort-dist/cohort/tensor"
)

// torchVersion is what the PyTorch ranks of a group are. What they cannot do, or would get wrong, is refused on the Go rank
// before anything is sent.
type torchVersion uint8

const (
	torchNone torchVersion = iota // all ranks are Go: everything works
	torch113
	torch26
)

func (v torchVersion) String() string {
	switch v {
	case torch113:
		return "PyTorch 1.13"
	case torch26:
		return "PyTorch 2.6"
	case torchNone:
	}
	return "Go"
}

// base reports whether gloo in this PyTorch has the element type in all operations.
func (v torchVersion) base(dt tensor.DType) bool {
	switch dt {
	case tensor.Float32, tensor.Float64, tensor.Float16, tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64:
		return true
	case tensor.BFloat16, tensor.Bool:
		return v == torch26
	default:
		return false
	}
}

// carries reports whether an operation of this PyTorch takes the element type. Some operations take complex numbers as
// pairs of real ones; messages take anything.
func (v torchVersion) carries(op OpType, dt tensor.DType, r ReduceOp) bool {
	if !dt.Complex() {
		return v.base(dt) || op == OpSend || op == OpRecv || op == OpRecvAny
	}
	switch op {
	case OpSend, OpRecv, OpRecvAny, OpAllGather, OpAllGatherInto, OpAllToAllInto, OpScatter:
		return true
	case OpAllReduce, OpAllReduceCoalesce:
		return r == Sum
	default:
		return false
	}
}

// check refuses what the PyTorch ranks of the group cannot do or would get wrong; see refusal. The rules were read off real
// processes of both versions; the interop tests hold every cell of this table against them.
func (v torchVersion) check(name string, op OpType, dt tensor.DType, r ReduceOp, numel int) error {
	if v == torchNone {
		return nil
	}
	lists := op == OpReduceScatter || op == OpAllToAll
	switch {
	case lists || op == OpReduceScatterInto && v == torch113:
		what := op.String()
		if lists {
			what += " of lists"
		}
		return refusef(atTheCall, name, "gloo of %v, which other ranks use, has no %s", v, what)
	case op == OpReduceScatterInto && r != Sum && v.carries(op, dt, Sum):
		return refusef(performed, name, "gloo of %v, which other ranks use, sums in reduce_scatter_tensor whatever the operator is; use all_reduce", v)
	case (op == OpAllGather || op == OpAllGatherInto) && numel == 0 && v == torch113: // one on the wire
		return refusef(atTheWait, name, "an all_gather of empty tensors ends a process of %v with a division by zero", v)
	case (op == OpAllReduce || op == OpAllReduceCoalesce) && dt.Complex() && r != Sum && r != Avg:
		return refusef(inPython, name, "%v of complex numbers is not defined", r)
	case (op == OpAllReduce || op == OpAllReduceCoalesce || op == OpReduce) && r == Avg:
		return refusef(atTheWait, name, "gloo of %v, which other ranks use, has no average; sum and divide", v)
	case !v.carries(op, dt, r):
		return refusef(atTheWait, name, "gloo of %v, which other ranks use, has no %v of %v; convert the tensor", v, op, dt)
	}
	return nil
}

// wireType is the element type that the PyTorch ranks see: booleans are bytes to gloo, complex numbers pairs.
func (v torchVersion) wireType(dt tensor.DType) tensor.DType {
	if v == torchNone {
		return dt
	}
	switch dt {
	case tensor.Bool:
		return tensor.Uint8
	case tensor.Complex64:
		return tensor.Float32
	case tensor.Complex128:
		return tensor.Float64
	default:
		return dt
	}
}

// uneven refuses blocks of different sizes. PyTorch's ranks refuse them too, each that sees them: in a gather and a scatter
// that is the root alone, and the others are on their way.
func (v torchVersion) uneven(name string, op OpType) error {
	if v == torchNone {
		return nil
	}
	where := atTheCall
	if op != OpAllGather {
		where = performed
	}
	return refusef(where, name, "gloo of %v, which other ranks use, needs tensors of one size", v)
}

// torchSteps is how far an operation moves the count that PyTorch 2.x puts into fingerprints. A monitored barrier counts the
// messages it consists of.
func (g *Group) torchSteps(w *Work) uint64 {
	switch {
	case w.steps == nil:
		return 1
	case g.rank == 0:
		return 2 * uint64(g.size-1) //nolint:gosec // at least one rank
	default:
		return 2
	}
}

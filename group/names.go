// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/coll"
)

// opName is OpType.String without the map, for the hot path.
func opName(o OpType) string {
	switch o {
	case OpAllReduce:
		return "all_reduce"
	case OpBroadcast:
		return "broadcast"
	case OpSend:
		return "send"
	case OpRecv:
		return "recv"
	case OpBarrier:
		return "barrier"
	default:
		return o.String()
	}
}

func reduceName(w *Work) string {
	switch w.call.Request.Kind {
	case coll.AllReduce, coll.Reduce, coll.ReduceScatter:
		return w.call.Request.Op.String()
	default:
		return ""
	}
}

func dtypeName(w *Work) string {
	if w.op == OpBarrier {
		return ""
	}
	return w.call.Request.DType.String()
}

// rootOf is the root of an operation that has one.
func rootOf(w *Work) int {
	switch w.call.Request.Kind {
	case coll.Broadcast, coll.Reduce, coll.Gather, coll.Scatter:
		return w.call.Request.Root
	default:
		return -1
	}
}

// rankList writes "rank 1" or "ranks 1, 2 and 5".
func rankList(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i, r := range ranks {
		switch {
		case i > 0 && i == len(ranks)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(r))
	}
	return b.String()
}

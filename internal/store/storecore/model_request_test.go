// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strings"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

type modelRequest struct {
	conn  int
	d     wire.Dialect
	id    uint32
	op    wire.Op
	keys  []string
	value string
	old   string
	num   int64
	wait  bool
}

func (r modelRequest) encode() []byte {
	key := ""
	if len(r.keys) > 0 {
		key = r.keys[0]
	}
	body := func(b []byte) []byte {
		switch r.op {
		case wire.Set, wire.Append, wire.QueuePush:
			return wire.AppendKeyValue(b, r.d, r.op, key, []byte(r.value))
		case wire.Add:
			return wire.AppendAdd(b, r.d, key, r.num)
		case wire.Barrier:
			return wire.AppendBarrier(b, r.d, key, r.num)
		case wire.CompareSet:
			return wire.AppendCompareSet(b, r.d, key, []byte(r.old), []byte(r.value))
		case wire.MultiGet, wire.Check, wire.Wait:
			return wire.AppendKeys(b, r.d, r.op, r.keys...)
		case wire.MultiSet:
			values := make([][]byte, len(r.keys))
			for i := range values {
				values[i] = []byte(r.value)
			}
			return wire.AppendMultiSet(b, r.d, r.keys, values)
		case wire.NumKeys:
			return wire.AppendPlain(b, r.d, r.op)
		case wire.QueuePop:
			if r.d == wire.Native {
				return wire.AppendQueuePop(b, key, r.wait)
			}
			return wire.AppendKey(b, r.d, r.op, key)
		case wire.CancelWait:
			if r.d == wire.Native {
				return wire.AppendCancel(b, uint32(r.num))
			}
			return wire.AppendPlain(b, r.d, r.op)
		default:
			return wire.AppendKey(b, r.d, r.op, key)
		}
	}
	if r.d == wire.Native {
		return frame(r.id, body)
	}
	return body(nil)
}

func sortFrames(s string) string {
	var frames []string
	for len(s) > 0 {
		_, n, err := wire.ParseFrame([]byte(s))
		if err != nil || n == 0 || n > len(s) {
			return "broken frames: " + s
		}
		frames, s = append(frames, s[:n]), s[n:]
	}
	slices.Sort(frames)
	return strings.Join(frames, "")
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"encoding/binary"
	"math"

	"github.com/cohort-dist/cohort"
)

// AppendRequest writes a request that was parsed in any dialect as it stands in a frame of the Native one behind the id, and as the
// operation op: it may have been parsed as another one with the same arguments. What it refers to is copied. A log keeps requests in
// this form.
func AppendRequest(b []byte, op Op, r *Request) []byte {
	b = appendCode(b, Native, op)
	for _, f := range layouts[Native][op] {
		switch f { //nolint:exhaustive // the others are those of sessions
		case fKey:
			b = AppendBytes(b, r.Key)
		case fValue:
			b = AppendBytes(b, r.Value)
		case fExpected:
			b = AppendBytes(b, r.Expected)
		case fNum:
			b = AppendInt(b, r.Num)
		case fNonce:
			b = AppendUint32(b, r.Nonce)
		case fWait:
			wait := byte(0)
			if r.Wait {
				wait = 1
			}
			b = append(b, wait)
		case fKeys, fPairs:
			b = binary.LittleEndian.AppendUint64(b, uint64(r.List.Count)) //nolint:gosec // not negative
			b = append(b, r.List.raw...)
		}
	}
	return b
}

// anyLimits let everything pass: what was accepted once stays valid under other limits.
var anyLimits = Limits{Key: math.MaxInt, Value: math.MaxInt, Keys: math.MaxInt, Request: math.MaxInt}

// ParseLogged reads a request that AppendRequest wrote, whatever the limits are now. Its slices are views into b.
func ParseLogged(b []byte, r *Request) error {
	if len(b) > 0 && parseWhole(Native, b, &anyLimits, r) == len(b) {
		return nil
	}
	return cohort.Newf("tcpstore: decode", cohort.Protocol, "a logged request of %d bytes cannot be read", len(b))
}

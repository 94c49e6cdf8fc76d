// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensortable

import (
	"encoding/binary"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/tensor"
)

// mathBits reads the flags of a lazy conjugate or negative, whose bytes are not the values.
func mathBits(v any) (conj, neg bool, err error) {
	v, _ = pickle.Untag(v)
	bits, ok := v.(*pickle.Dict)
	if !ok {
		return false, false, badTable("the flags of a tensor are a %s", pickle.TypeName(v))
	}
	for _, p := range bits.Pairs {
		on, isBool := p.Value.(bool)
		switch {
		case !isBool:
			return false, false, badTable("the flag %v of a tensor is a %s", p.Key, pickle.TypeName(p.Value))
		case p.Key == "conj":
			conj = on
		case p.Key == "neg":
			neg = on
		case on:
			return false, false, cohort.Newf("rpc: tensor table", cohort.NotSupported, "a lazy view (%v): send a copy of it", p.Key)
		}
	}
	return conj, neg, nil
}

// resolved returns a copy with the values that a lazy conjugate or negative stands for, as resolve_conj and resolve_neg
// do: Go has no such views.
func resolved(t *tensor.Tensor, conj, neg bool) (*tensor.Tensor, error) {
	dt := t.DType()
	parts := 1
	if dt.Complex() {
		parts = 2
	} else if !dt.Floating() || conj {
		return nil, badTable("a lazy view of %v", dt)
	}
	t, err := t.Clone()
	if err != nil {
		return nil, err
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	width := dt.Size() / parts
	sign := width - 1 // the byte that has the sign
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		sign = 0
	}
	for i := 0; i < len(data); i += width {
		if neg != (conj && i/width%2 == 1) {
			data[i+sign] ^= 0x80
		}
	}
	return t, nil
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// Fingerprint is what a rank publishes about a collective that it is going to run, where PyTorch's ranks run with
// TORCH_DISTRIBUTED_DEBUG=DETAIL. On the wire it is a tensor of 64-bit integers.
type Fingerprint struct {
	Op       uint8  // PyTorch's number of the operation
	Sequence uint64 // operations of the group so far; not in Torch113
	Tensors  []tensorPrint
}

// tensorPrint is the part of a fingerprint about one tensor.
type tensorPrint struct {
	DType  uint8 // PyTorch's number of the element type
	Device uint8 // PyTorch's number of the device type; 0 is the CPU
	Shape  []int64
}

// Add appends a tensor. Complex numbers that go as pairs are real ones with a dimension more.
func (f *Fingerprint) Add(dt tensor.DType, shape []int, pairs bool) {
	p := tensorPrint{DType: uint8(dt), Shape: make([]int64, 0, len(shape)+1)}
	for _, n := range shape {
		p.Shape = append(p.Shape, int64(n))
	}
	switch {
	case pairs && dt == tensor.Complex64:
		p.DType, p.Shape = uint8(tensor.Float32), append(p.Shape, 2)
	case pairs && dt == tensor.Complex128:
		p.DType, p.Shape = uint8(tensor.Float64), append(p.Shape, 2)
	}
	f.Tensors = append(f.Tensors, p)
}

// Bounds of what is believed about another rank's fingerprint.
const (
	maxPrintTensors = 1 << 10
	maxPrintDims    = 1 << 10
)

// Words returns the fingerprint as int64 words, as they are sent.
func (f *Fingerprint) Words(l Layout) []int64 {
	words := []int64{int64(f.Op)}
	if l != Torch113 {
		words = append(words, int64(f.Sequence)) //nolint:gosec // a count
	}
	words = append(words, int64(len(f.Tensors)))
	for _, t := range f.Tensors {
		words = append(words, int64(t.DType))
	}
	for _, t := range f.Tensors {
		words = append(words, int64(t.Device))
	}
	for _, t := range f.Tensors {
		words = append(words, int64(len(t.Shape)))
		words = append(words, t.Shape...)
	}
	return words
}

// parseFingerprint reads what another rank sent.
func parseFingerprint(l Layout, words []int64) (Fingerprint, error) {
	var f Fingerprint
	bad := func(what string) (Fingerprint, error) {
		return Fingerprint{}, cohort.Newf("gloo: fingerprint", cohort.Protocol, "%d words: %s", len(words), what)
	}
	next := func() (int64, bool) {
		if len(words) == 0 {
			return 0, false
		}
		w := words[0]
		words = words[1:]
		return w, true
	}
	op, ok := next()
	if !ok || op < 0 || op > 255 {
		return bad("no operation")
	}
	f.Op = uint8(op)
	if l != Torch113 {
		seq, found := next()
		if !found {
			return bad("no sequence number")
		}
		f.Sequence = uint64(seq) //nolint:gosec // for people
	}
	n, ok := next()
	if !ok || n < 0 || n > maxPrintTensors || int64(len(words)) < 3*n {
		return bad("impossible number of tensors")
	}
	f.Tensors = make([]tensorPrint, n)
	for i := range f.Tensors {
		dt, _ := next()
		f.Tensors[i].DType = uint8(dt) //nolint:gosec // for people
	}
	for i := range f.Tensors {
		device, _ := next()
		f.Tensors[i].Device = uint8(device) //nolint:gosec // for people
	}
	for i := range f.Tensors {
		dims, ok := next()
		if !ok || dims < 0 || dims > maxPrintDims || dims > int64(len(words)) {
			return bad("impossible number of dimensions")
		}
		f.Tensors[i].Shape = slices.Clone(words[:dims])
		words = words[dims:]
	}
	if len(words) != 0 {
		return bad("more than the tensors need")
	}
	return f, nil
}

// torchOps are the names of PyTorch's operations by number.
var torchOps = [...]string{
	"broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_coalesced",
	"gather", "scatter", "reduce_scatter", "all_to_all_single", "all_to_all", "send", "recv", "recv_any", "barrier",
	"reduce_scatter_tensor",
}

// String reports what the rank runs, for people.
func (f *Fingerprint) String() string {
	var b strings.Builder
	if int(f.Op) < len(torchOps) {
		b.WriteString(torchOps[f.Op])
	} else {
		fmt.Fprintf(&b, "operation %d", f.Op)
	}
	b.WriteByte('(')
	for i, t := range f.Tensors {
		if i > 0 {
			b.WriteString(", ")
		}
		if dt := tensor.DType(t.DType); dt.Valid() {
			b.WriteString(dt.String())
		} else {
			fmt.Fprintf(&b, "type %d", t.DType)
		}
		fmt.Fprintf(&b, "%v", t.Shape)
		if t.Device != 0 {
			fmt.Fprintf(&b, " on device type %d", t.Device)
		}
	}
	b.WriteByte(')')
	if f.Sequence != 0 {
		fmt.Fprintf(&b, " as operation %d", f.Sequence)
	}
	return b.String()
}

func putWords(words []int64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(w)) //nolint:gosec // the bits
	}
	return b
}

func getWords(b []byte) []int64 {
	words := make([]int64, len(b)/8)
	for i := range words {
		words[i] = int64(binary.LittleEndian.Uint64(b[8*i:])) //nolint:gosec // the bits
	}
	return words
}

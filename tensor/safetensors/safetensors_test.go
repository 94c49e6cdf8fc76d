// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

func of(x any) *tensor.Tensor { return tensor.Must(tensor.Of(x)) }

func sample() *safetensors.File {
	return &safetensors.File{
		Tensors: map[string]*tensor.Tensor{
			"w":       tensor.Must(of([][]float32{{1, 2}, {3, 4}, {5, 6}}).Transpose(0, 1)),
			"bytes":   of([]uint8{1, 2, 3}),
			"scalar":  of(float64(1.5)),
			"empty":   tensor.Must(tensor.New(tensor.Int64, 0, 3)),
			"flags":   of([]bool{true, false}),
			"half":    of([]tensor.BF16{tensor.ToBF16(2)}),
			"ünicode": of([]int16{-1}),
			"c":       of([]complex64{1i}),
		},
		Metadata: map[string]string{"format": "pt"},
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	f := sample()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := safetensors.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tensors) != len(f.Tensors) || !cmp.Equal(got.Metadata, f.Metadata) {
		t.Errorf("read %v", got)
	}
	for name, want := range f.Tensors {
		if g := got.Tensors[name]; g == nil || !tensor.SameBits(g, want) {
			t.Errorf("%s: %v, want %v", name, g, want)
		}
	}
	if _, err := safetensors.Load(path + "x"); !errors.Is(err, cohort.NotFound) {
		t.Errorf("a missing file: %v", err)
	}
	for _, broken := range []*tensor.Tensor{nil, tensor.Must(tensor.New(tensor.Complex128, 1))} {
		f := &safetensors.File{Tensors: map[string]*tensor.Tensor{"x": broken}}
		if err := f.Write(&bytes.Buffer{}); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v was written: %v", broken, err)
		}
	}
}

func file(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), make([]byte, data)...)
}

func TestHostile(t *testing.T) {
	t.Parallel()
	huge := binary.LittleEndian.AppendUint64(nil, 1<<62)
	for name, data := range map[string][]byte{
		"nothing":       {},
		"short prefix":  {1, 2, 3},
		"huge header":   append(huge, "{}"...),
		"long header":   append(binary.LittleEndian.AppendUint64(nil, 90_000_000), "{}"...),
		"no header":     file("", 0),
		"not an object": file("[]", 0),
		"not JSON":      file(`{"a"`, 0),
		"behind":        file(`{} {}`, 0),
		"not UTF-8":     file("{\"\xff\":{}}", 0),
		"twice": file(
			`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"two metadata":  file(`{"__metadata__":{},"__metadata__":{}}`, 0),
		"metadata kind": file(`{"__metadata__":{"a":1}}`, 0),
		"unknown type":  file(`{"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,1]}}`, 1),
		"negative":      file(`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1),
		"two negatives": file(`{"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}}`, 1),
		"wrong size":    file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1]}}`, 1),
		"overflow":      file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}`, 0),
		"outside":       file(`{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`, 1),
		"backwards":     file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}}`, 1),
		"gap":           file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2),
		"overlap": file(
			`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3),
		"more data":      file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2),
		"no offsets":     file(`{"a":{"dtype":"U8","shape":[1]}}`, 1),
		"no shape":       file(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1),
		"float shape":    file(`{"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}`, 1),
		"not an entry":   file(`{"a":7}`, 0),
		"fractured JSON": file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`, 1),
	} {
		if f, err := safetensors.Decode(data); !errors.Is(err, cohort.Protocol) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	if _, err := safetensors.Decode(file("{}    ", 0)); err != nil {
		t.Errorf("a padded empty header: %v", err)
	}
}

// TestTruncated: a file that ends early is refused wherever it ends, and one that continues behind its tensors.
func TestTruncated(t *testing.T) {
	t.Parallel()
	var whole bytes.Buffer
	if err := sample().Write(&whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole.Len() {
		if f, err := safetensors.Decode(whole.Bytes()[:n]); !errors.Is(err, cohort.Protocol) {
			t.Fatalf("%d of %d bytes: %v, %v", n, whole.Len(), f, err)
		}
	}
	if f, err := safetensors.Decode(append(whole.Bytes(), 0)); !errors.Is(err, cohort.Protocol) {
		t.Errorf("one byte more: %v, %v", f, err)
	}
}

// TestOddLayouts: elements at odd addresses, empty tensors between others, scalars, and names out of order are read as they are.
func TestOddLayouts(t *testing.T) {
	t.Parallel()
	data := file(`{"z":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[0,7],"data_offsets":[1,1]},`+
		`"a":{"dtype":"F32","shape":[1,1],"data_offsets":[1,5]},"":{"dtype":"BOOL","shape":[0],"data_offsets":[5,5]}} `, 5)
	copy(data[len(data)-5:], []byte{9, 0, 0, 0x80, 0x3f})
	f, err := safetensors.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]*tensor.Tensor{
		"z": tensor.Must(tensor.Full(tensor.Uint8, 9)), "a": tensor.Must(tensor.From([]float32{1}, 1, 1)),
		"b": tensor.Must(tensor.New(tensor.Float32, 0, 7)), "": tensor.Must(tensor.New(tensor.Bool, 0)),
	} {
		if got := f.Tensors[name]; got == nil || !tensor.SameBits(got, want) {
			t.Errorf("%q is %v, want %v", name, got, want)
		}
	}
	bytesBefore := bytes.Clone(data)
	var again bytes.Buffer
	if err := f.Write(&again); err != nil || !bytes.Equal(data, bytesBefore) {
		t.Error(err)
	}
	bad := &safetensors.File{Metadata: map[string]string{"made by": "\xff"}}
	if err := bad.Write(&again); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("metadata that are not UTF-8: %v", err)
	}
	if f, err := safetensors.Decode(file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"I8"}}`, 1)); !errors.Is(err,
		cohort.Protocol) {
		t.Errorf("two types of one tensor: %v, %v", f, err)
	}
	if f, err := safetensors.Decode(file(`{"a":{"DType":"U8","shape":[1],"data_offsets":[0,1]}}`, 1)); !errors.Is(err, cohort.Protocol) {
		t.Errorf("a key in other letters: %v, %v", f, err)
	}
}

func FuzzDecode(f *testing.F) {
	var valid bytes.Buffer
	if err := sample().Write(&valid); err != nil {
		f.Fatal(err)
	}
	f.Add(valid.Bytes())
	f.Add(file("{}", 0))
	f.Add(file(`{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := safetensors.Decode(data)
		if err != nil {
			return
		}
		// What was accepted can be written and reads the same.
		var again bytes.Buffer
		if err = got.Write(&again); err != nil {
			t.Fatal(err)
		}
		back, err := safetensors.Decode(again.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range got.Tensors {
			if !tensor.SameBits(x, back.Tensors[name]) {
				t.Errorf("%q changed", name)
			}
		}
	})
}

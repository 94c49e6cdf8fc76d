// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensortable

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
	"github.com/cohort-dist/cohort/tensor"
)

func TestStorageIsCutLikePyTorchs(t *testing.T) {
	big := tensor.Must(tensor.New(tensor.Float32, 4096)) // 16 KiB
	part, err := big.Narrow(0, 10, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, storages, err := Encode([]any{part.SetRequiresGrad(true)})
	if err != nil || storages[0].Len() != 2048*4 {
		t.Errorf("half of 16 KiB sends %d bytes, %v", storages[0].Len(), err)
	}
	part, _ = big.Narrow(0, 10, 2049)
	if _, storages, _ = Encode([]any{part}); storages[0].Len() != 16<<10 {
		t.Errorf("more than half sends %d bytes", storages[0].Len())
	}
	small := tensor.Must(tensor.New(tensor.Float32, 100))
	part, _ = small.Narrow(0, 0, 1)
	if _, storages, _ = Encode([]any{part, small}); len(storages) != 1 || storages[0].Len() != 400 {
		t.Errorf("a small view sends %d storages", len(storages))
	}
}

func TestBadTables(t *testing.T) {
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4}, 2, 2))
	table, storages, err := Encode([]any{x})
	if err != nil {
		t.Fatal(err)
	}
	swap := func(from, to string) []byte { return bytes.Replace(table, []byte(from), []byte(to), 1) }
	for name, b := range map[string][]byte{
		"another storage": swap("X\x01\x00\x00\x000", "X\x01\x00\x00\x007"), "too long": swap("K\x04tQ", "K\x09tQ"),
		"another device": swap("X\x03\x00\x00\x00cpu", "X\x03\x00\x00\x00gpu"), "unknown type": swap("FloatStorage", "QUInt8Storage"),
		"beyond its storage": swap("(K\x02K\x02t", "(K\x02K\x09t"), "negative": swap("(K\x02K\x02t", "(K\x02J\xff\xff\xff\xfft"),
		"not a list": []byte("\x80\x02N."), "empty": nil, "another global": swap("_rebuild_tensor_v2", "_rebuild_tensor_v3"),
	} {
		if got, err := Decode(b, storages); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	bad := &tensor.Sparse{
		Shape: []int{2}, Indices: tensor.Must(tensor.From([]int64{5}, 1, 1)),
		Values: tensor.Must(tensor.From([]float32{1}, 1)),
	}
	if _, _, err := Encode([]any{bad}); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("an index outside: %v", err)
	}
}

// TestDocumentedElementTypes: docs/wire/pickle.md has the names of all storages.
func TestDocumentedElementTypes(t *testing.T) {
	page, err := os.ReadFile("../../../docs/wire/pickle.md")
	if err != nil {
		t.Fatal(err)
	}
	elements := tpcapture.Table(string(page), "Element types (checked)")
	if len(elements) != len(storageNames) {
		t.Errorf("%d element types are documented of %d", len(elements), len(storageNames))
	}
	for _, row := range elements {
		if dt, ok := storageTypes[row[1]]; !ok || dt.String() != row[0] {
			t.Errorf("%v: the codec says %v", row, dt)
		}
	}
}

func FuzzShort(f *testing.F) {
	add := func(tensors ...any) {
		table, _, err := EncodeShort(tensors)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(slices.Clone(table), "payload"...), 16)
	}
	x := tensor.Must(tensor.From([]float32{1, 2, 3, 4}, 2, 2))
	add(x, x)
	add(&tensor.Sparse{
		Shape: []int{4}, Indices: tensor.Must(tensor.From([]int64{0, 3}, 1, 2)),
		Values: tensor.Must(tensor.From([]float64{1, 2}, 2)),
	})
	f.Fuzz(func(t *testing.T, payload []byte, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		storages := []*tensor.Storage{tensor.WrapStorage(make([]byte, n), "fuzz", nil), tensor.WrapStorage(make([]byte, n), "fuzz", nil)}
		tensors, _, err := DecodeShort(payload, storages, nil)
		if err != nil {
			return
		}
		if _, _, err := EncodeShort(tensors); err != nil {
			t.Fatal(err)
		}
	})
}

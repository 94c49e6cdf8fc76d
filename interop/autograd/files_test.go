// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
)

//go:embed files.py
var filesScript string

// fileTypes are those of the format that PyTorch has, by their names there.
var fileTypes = map[string]tensor.DType{
	"BOOL": tensor.Bool, "U8": tensor.Uint8, "I8": tensor.Int8, "I16": tensor.Int16, "I32": tensor.Int32, "I64": tensor.Int64,
	"F16": tensor.Float16, "BF16": tensor.BFloat16, "F32": tensor.Float32, "F64": tensor.Float64, "C64": tensor.Complex64,
	"U16": tensor.Uint16, "U32": tensor.Uint32, "U64": tensor.Uint64, "F8_E5M2": tensor.Float8E5M2, "F8_E4M3": tensor.Float8E4M3FN,
}

// TestFiles: tensors of all types, without dimensions, empty, under odd names and beside odd metadata, are read in
// PyTorch bit by bit as they were written here, and the other way round. Where Python has the library safetensors, it
// reads and writes.
func TestFiles(t *testing.T) {
	type entry struct {
		DType string `json:"dtype"`
		Shape []int  `json:"shape"`
		Bits  string `json:"bits"`
	}
	odd := []string{
		"", "a b", "ünïcode/日本.🙂", "quote\"back\\slash", "tab\tnew\nline", "<&>\u2028", "null\x00", "__metadata", "0",
		strings.Repeat("long.", 2000),
	}
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		f := rand.New(rand.NewPCG(5, 6))
		host, inside := torch.TempDir(t)
		types := slices.Sorted(maps.Keys(fileTypes))
		if torch == torchtest.V113 { // it lacks some
			types = slices.DeleteFunc(types, func(name string) bool {
				return slices.Contains([]string{"U16", "U32", "U64", "F8_E5M2", "F8_E4M3"}, name)
			})
		}
		file := &safetensors.File{
			Tensors:  map[string]*tensor.Tensor{},
			Metadata: map[string]string{"format": "pt", "": "", "odd \"key\"\n": "日本\x00</script>"},
		}
		want := map[string]entry{}
		for _, name := range types {
			for _, shape := range [][]int{{}, {0}, {3}, {2, 0, 4}, {1, 1, 1, 5}} {
				x, err := tensor.New(fileTypes[name], shape...)
				if err != nil {
					t.Fatal(err)
				}
				raw, err := x.Bytes()
				if err != nil {
					t.Fatal(err)
				}
				for j := range raw {
					if raw[j] = byte(f.Uint32()); name == "BOOL" {
						raw[j] &= 1
					}
				}
				key := fmt.Sprint(name, shape)
				if len(want) < len(odd) {
					key = odd[len(want)]
				}
				file.Tensors[key], want[key] = x, entry{name, shape, hex.EncodeToString(raw)}
			}
		}
		text, err := json.Marshal(object{"tensors": want, "metadata": file.Metadata})
		if err == nil {
			err = os.WriteFile(filepath.Join(host, "want"), text, 0o600)
		}
		if err == nil {
			err = file.Save(filepath.Join(host, "ours"))
		}
		if err != nil {
			t.Fatal(err)
		}
		p := torch.Start(t, torchtest.Script{
			Source: filesScript,
			Args:   []string{filepath.Join(inside, "want"), filepath.Join(inside, "ours"), filepath.Join(inside, "theirs")},
		})
		t.Log(p.Line(t))
		if line := p.Line(t); !strings.HasPrefix(line, "ok") {
			t.Fatal(line)
		}
		p.MustExit(t, time.Minute)
		back, err := safetensors.Load(filepath.Join(host, "theirs"))
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(back.Metadata, file.Metadata) || len(back.Tensors) != len(want) {
			t.Errorf("%d tensors of %d, metadata %q", len(back.Tensors), len(want), back.Metadata)
		}
		for key, e := range want {
			x := back.Tensors[key]
			if x == nil {
				t.Errorf("%q is missing", key)
				continue
			}
			if raw, err := x.Bytes(); err != nil || x.DType() != fileTypes[e.DType] || !slices.Equal(x.Shape(), e.Shape) ||
				hex.EncodeToString(raw) != e.Bits {
				t.Errorf("%q is %v%v %x, %v, want %+v", key, x.DType(), x.Shape(), raw, err, e)
			}
		}
	})
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package reduce checks the reduction kernels bit by bit against all_reduce of real PyTorch.
package reduce

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// script all-reduces the file of every case with the other rank; rank 0 prints the bits of the results.
const script = `
import sys, torch, torch.distributed as dist
folder, rank, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
dist.init_process_group("gloo", init_method="file://%s/rendezvous" % folder, rank=rank, world_size=2)
for case in cases:
    dtype, op = case.split(":")
    with open("%s/%s.%d" % (folder, dtype, rank), "rb") as f:
        t = torch.frombuffer(bytearray(f.read()), dtype=getattr(torch, dtype)).clone()
    dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
    if rank == 0:
        print(case, bytes(t.view(torch.uint8).tolist()).hex(), flush=True)
dist.barrier()
`

var torchOps = map[string]reduce.Op{
	"SUM": reduce.Sum, "PRODUCT": reduce.Product, "MIN": reduce.Min, "MAX": reduce.Max,
	"BAND": reduce.And, "BOR": reduce.Or, "BXOR": reduce.Xor,
}

// pairs returns the operands of all pairs of special values, then random bits.
func pairs(dt tensor.DType, special []uint64, random int) (a, b []byte) {
	r := rand.New(rand.NewPCG(uint64(dt), 7))
	size := dt.Size()
	add := func(x, y uint64) {
		a, b = binary.LittleEndian.AppendUint64(a, x), binary.LittleEndian.AppendUint64(b, y)
		a, b = a[:len(a)-8+size], b[:len(b)-8+size]
	}
	for _, x := range special {
		for _, y := range special {
			add(x, y)
		}
	}
	for range random {
		x, y := r.Uint64(), r.Uint64()
		if dt == tensor.Bool {
			x, y = x&1, y&1
		}
		add(x, y)
	}
	return a, b
}

var specials = map[tensor.DType][]uint64{
	tensor.Float16: {
		0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x7380, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe00, 0x7fff,
		0xffff, 0x3555, 0x6400, 0x0200,
	},
	tensor.BFloat16: {
		0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc0, 0x7fff, 0x3eab,
	},
	tensor.Float32: {
		0, 0x80000000, 1, 0x80000001, 0x7fffff, 0x800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
		0x7f800001, 0xff800123, 0x7fc00000, 0xffc00000, 0x7fc12345, 0x3eaaaaab, 0x4b800000,
	},
	tensor.Float64: {
		0, 1 << 63, 1, 1<<63 | 1, 1<<52 - 1, 1 << 52, 0x3ff0000000000000, 0xbff0000000000000, 0x7fefffffffffffff,
		0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0x7ff8000000000000, 0xfff8000000000123,
	},
	tensor.Bool:  {0, 1},
	tensor.Uint8: {0, 1, 2, 0x7f, 0x80, 0xff},
	tensor.Int8:  {0, 1, 2, 0x7f, 0x80, 0xff},
	tensor.Int32: {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0x10001},
	tensor.Int64: {0, 1, 2, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<32 + 1},
}

func TestBitsOfAllReduce(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Helper()
		types := []tensor.DType{tensor.Float32, tensor.Float64, tensor.Uint8, tensor.Int8, tensor.Int32, tensor.Int64}
		halves := torch.About(t).Has(torchtest.Halves)
		if halves {
			types = append(types, tensor.Float16)
		}
		if torch.Name != "1.13" { // gloo of 1.13 refuses these
			types = append(types, tensor.Bool)
			if halves {
				types = append(types, tensor.BFloat16)
			}
		}
		host, inside := torch.TempDir(t)
		want := map[string][]byte{}
		var cases []string
		for _, dt := range types {
			a, b := pairs(dt, specials[dt], 400)
			// Ring all-reduce of two ranks: rank 0 combines the first half of the buffer with itself as first operand,
			// rank 1 the second half. Every pair appears in both halves, so both orders are seen. The length is a multiple
			// of four elements, so that the halves are exact.
			for len(a)%(4*dt.Size()) != 0 {
				a, b = append(a, a[:dt.Size()]...), append(b, b[:dt.Size()]...)
			}
			rank0, rank1 := append(slices.Clip(a), a...), append(slices.Clip(b), b...)
			for rank, data := range [][]byte{rank0, rank1} {
				if err := os.WriteFile(filepath.Join(host, fmt.Sprintf("%v.%d", dt, rank)), data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for name, op := range torchOps {
				if !reduce.Supported(dt, op) {
					continue
				}
				first := append([]byte(nil), a...)
				reduce.Gloo(first, b, dt, op)
				second := append([]byte(nil), b...)
				reduce.Gloo(second, a, dt, op)
				key := fmt.Sprintf("%v:%s", dt, name)
				want[key] = append(first, second...)
				cases = append(cases, key)
			}
		}
		args := func(rank string) []string { return []string{inside, rank, strings.Join(cases, ",")} }
		other := torch.Start(t, torchtest.Script{Name: "rank1.py", Source: script, Args: args("1")})
		out := torch.Run(t, torchtest.Script{Name: "rank0.py", Source: script, Args: args("0")})
		_ = other
		seen := 0
		for line := range strings.Lines(out) {
			key, bits, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok {
				continue
			}
			got, err := hex.DecodeString(bits)
			if err != nil || len(got) != len(want[key]) {
				t.Fatalf("%s: %d bytes, want %d (%v)", key, len(got), len(want[key]), err)
			}
			seen++
			compare(t, host, key, got, want[key])
		}
		if seen != len(cases) {
			t.Fatalf("PyTorch answered %d of %d cases", seen, len(cases))
		}
		t.Logf("%d cases of dtype x operator are bit-equal", seen)
	})
}

// compare reports the first elements that differ, with their operands.
func compare(t *testing.T, host, key string, torch, ours []byte) {
	t.Helper()
	name, _, _ := strings.Cut(key, ":")
	x, _ := os.ReadFile(filepath.Join(host, name+".0"))
	y, _ := os.ReadFile(filepath.Join(host, name+".1"))
	size := map[string]int{"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}[name]
	size = max(size, 1)
	wrong := 0
	for i := 0; i < len(ours); i += size {
		if string(torch[i:i+size]) == string(ours[i:i+size]) {
			continue
		}
		if wrong++; wrong <= 5 {
			t.Errorf("%s element %d of %d: rank 0 %x, rank 1 %x: PyTorch %x, ours %x", key, i/size, len(ours)/size,
				x[i:i+size], y[i:i+size], torch[i:i+size], ours[i:i+size])
		}
	}
	if wrong > 5 {
		t.Errorf("%s: %d elements differ", key, wrong)
	}
}

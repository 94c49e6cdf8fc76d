// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// TestResetAtBytes resets the connection of a Go rank and a PyTorch rank after some bytes, while they connect or within
// a collective. Both end with an error, or both have the result.
func TestResetAtBytes(t *testing.T) {
	plan := []step{{Op: "all_reduce", DType: "float32", N: 20_000}, {Op: "barrier"}}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, n := range []int{1, 8, 9, 33, 64, 100, 5000, 40_000, 81_000} {
			for _, down := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d-down-%v", n, down), func(t *testing.T) {
					t.Parallel()
					port := strconv.Itoa(testkit.FreePort(t))
					p := tr.Start(t, torchtest.Script{Name: "rank0.py", Source: worker, Args: []string{"0", "2", port, string(text), "20"}})
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // PyTorch may take a minute to start
					defer cancel()
					var proxy *faultnet.Proxy
					hash := ""
					m, err := join(ctx, tr, "127.0.0.1:"+port, 1, 2, 2*time.Minute, func(c *gloo.Config) {
						c.Devices = []string{"127.0.0.2"}
						through := throughProxy{KV: c.Store, t: t, size: 2, suffix: "/0/0", proxy: &proxy}
						if down {
							through.down.CutAfter = n
						} else {
							through.up.CutAfter = n
						}
						c.Store = through
					})
					for i := 0; err == nil && i < len(plan); i++ {
						var got string
						if got, err = m.run(ctx, i, plan[i]); i == 0 && err == nil {
							hash = got
						}
					}
					if err != nil && ctx.Err() != nil {
						t.Errorf("the Go rank hangs: %v", err)
					}
					if m != nil {
						m.close()
					}
					if proxy == nil {
						t.Fatal("the proxy is not in the way")
					}
					if err == nil {
						p.Expect(t, "done")
						p.Send(t, "exit")
					}
					if _, failed := p.Wait(ctx); failed != nil {
						t.Fatalf("the PyTorch rank does not end: %v", failed)
					}
					_, line, found := strings.Cut(p.Stdout(), "step 0 ")
					line, _, _ = strings.Cut(line, "\n")
					if found && hash != "" && !strings.HasPrefix(line, "error") && line != hash {
						t.Errorf("PyTorch has %s, Go %s", line, hash)
					}
					t.Logf("Go: %v; PyTorch: %.100s", err, line)
				})
			}
		}
	})
}

var dtypes = map[string]tensor.DType{
	"float32": tensor.Float32, "float64": tensor.Float64, "float16": tensor.Float16, "bfloat16": tensor.BFloat16,
	"int8": tensor.Int8, "uint8": tensor.Uint8, "int32": tensor.Int32, "int64": tensor.Int64, "bool": tensor.Bool,
}

var redOps = map[string]reduce.Op{
	"": reduce.Sum, "SUM": reduce.Sum, "PRODUCT": reduce.Product, "MIN": reduce.Min, "MAX": reduce.Max,
	"BAND": reduce.And, "BOR": reduce.Or, "BXOR": reduce.Xor,
}

// period is after how many elements values repeats: a prime, so that no cut that gloo makes is a multiple of it.
const period = 4099

// values makes the same bits as the function of that name in worker.py.
func values(dtype string, n, rank, i, salt int) []byte {
	size := dtypes[dtype].Size()
	b := make([]byte, 0, n*size)
	for k := range min(n, period) {
		x := (int64(k)*2654435761 + int64(rank)*7919 + int64(i)*104729 + int64(salt)*15485863) % 4294967296
		switch dtype {
		case "float32":
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x%16777216)/1024))
		case "float64":
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(x%16777216)/1024))
		case "float16":
			b = binary.LittleEndian.AppendUint16(b, halfBits(float32(x%2048)/64, 5, 10))
		case "bfloat16":
			b = binary.LittleEndian.AppendUint16(b, halfBits(float32(x%256)/8, 8, 7))
		case "bool":
			b = append(b, byte(x%2))
		case "uint8":
			b = append(b, byte(x%251))
		case "int8":
			b = append(b, byte(x%251-125))
		case "int32":
			b = binary.LittleEndian.AppendUint32(b, uint32(x%251-125))
		case "int64":
			b = binary.LittleEndian.AppendUint64(b, uint64(x%251-125))
		default:
			panic(dtype)
		}
	}
	for len(b) < n*size {
		b = append(b, b[:min(len(b), n*size-len(b), period*size)]...)
	}
	return b
}

// halfBits narrows a positive float32 that a type with so many exponent and mantissa bits holds exactly.
func halfBits(f float32, exponent, mantissa int) uint16 {
	if f == 0 {
		return 0
	}
	bits := math.Float32bits(f)
	e := int(bits>>23) - 127 + (1<<(exponent-1) - 1)
	return uint16(e<<mantissa) | uint16(bits&(1<<23-1)>>(23-mantissa))
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

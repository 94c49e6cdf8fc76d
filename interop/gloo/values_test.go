// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"

	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

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

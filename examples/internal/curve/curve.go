// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package curve draws how a loss falls, in a terminal.
package curve

import (
	"fmt"
	"math"
	"strings"
)

const (
	width  = 60
	height = 8
)

// Draw returns a picture of the values from left to right, each column the mean of its share.
func Draw(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	n := min(width, len(values))
	columns := make([]float64, n)
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range columns {
		part := values[i*len(values)/n : max((i+1)*len(values)/n, i*len(values)/n+1)]
		for _, v := range part {
			columns[i] += v / float64(len(part))
		}
		lo, hi = min(lo, columns[i]), max(hi, columns[i])
	}
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	var out strings.Builder
	for row := height - 1; row >= 0; row-- {
		switch row {
		case height - 1:
			fmt.Fprintf(&out, "%8.3f ┤", hi)
		case 0:
			fmt.Fprintf(&out, "%8.3f ┤", lo)
		default:
			out.WriteString("         │")
		}
		for _, v := range columns {
			level := 1.0
			if hi > lo {
				level += (v - lo) / (hi - lo) * (height*8 - 1)
			}
			out.WriteRune(eighths[int(min(max(level-float64(8*row), 0), 8))])
		}
		out.WriteByte('\n')
	}
	return out.String()
}

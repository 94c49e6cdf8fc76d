// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The numbers of PyTorch's default print profile.
const (
	printEdge      = 3
	printThreshold = 1000
	printWidth     = 80
	printDigits    = 4
)

// String prints the tensor as PyTorch's repr does, summarised above 1000 elements.
func (t *Tensor) String() string {
	const prefix = "tensor("
	switch {
	case t.storage == nil:
		return "tensor(<no memory>)"
	case t.storage.Released():
		return fmt.Sprintf("tensor(<released %s memory>, size=%s, dtype=torch.%v)", t.storage.origin, sizeTuple(t.shape), t.dtype)
	}
	var body string
	var suffixes []string
	if t.numel == 0 {
		body = "[]"
		if len(t.shape) != 1 {
			suffixes = append(suffixes, "size="+sizeTuple(t.shape))
		}
		if t.dtype != Float32 {
			suffixes = append(suffixes, "dtype=torch."+t.dtype.String())
		}
	} else {
		switch t.dtype {
		case Float32, Complex64, Int64, Bool:
		default:
			suffixes = append(suffixes, "dtype=torch."+t.dtype.String())
		}
		body = newPrinter(t).format(t, len(prefix))
	}
	if t.grad {
		suffixes = append(suffixes, "requires_grad=True")
	}
	var b strings.Builder
	b.WriteString(prefix + body)
	line := len(body) - strings.LastIndexByte(body, '\n') + 1
	for _, s := range suffixes {
		if line+len(s)+2 > printWidth {
			b.WriteString(",\n" + strings.Repeat(" ", len(prefix)) + s)
			line = len(prefix) + len(s)
		} else {
			b.WriteString(", " + s)
			line += len(s) + 2
		}
	}
	b.WriteByte(')')
	return b.String()
}

func sizeTuple(shape []int) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = strconv.Itoa(d)
	}
	if len(parts) == 1 {
		return "(" + parts[0] + ",)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// printer formats the elements of one tensor alike.
type printer struct {
	summarize  bool
	first      column  // the elements, or their real parts
	second     *column // imaginary parts
	perElement int
}

func newPrinter(t *Tensor) *printer {
	p := &printer{summarize: t.numel > printThreshold}
	var re, im []any
	p.visit(t, t.offset, 0, func(at int) {
		switch v := t.load(at).(type) {
		case complex64:
			re, im = append(re, float64(real(v))), append(im, float64(imag(v)))
		case complex128:
			re, im = append(re, real(v)), append(im, imag(v))
		default:
			re = append(re, widen(v))
		}
	})
	p.first = newColumn(re)
	p.perElement = p.first.width + 2
	if t.dtype.Complex() {
		c := newColumn(im)
		p.second = &c
		p.perElement += c.width + 1
	}
	return p
}

// widen turns floats of any kind into float64 and leaves the rest.
func widen(v any) any {
	switch v.(type) {
	case F16, BF16, float32:
		f, _ := asFloat(v)
		return f
	}
	return v
}

// visit calls f for every element that will be printed.
func (p *printer) visit(t *Tensor, at, dim int, f func(at int)) {
	if dim == len(t.shape) {
		f(at)
		return
	}
	n := t.shape[dim]
	for i := 0; i < n; i++ {
		if p.summarize && n > 2*printEdge && i == printEdge {
			i = n - printEdge
		}
		p.visit(t, at+i*t.strides[dim], dim+1, f)
	}
}

func (p *printer) format(t *Tensor, indent int) string { return p.sub(t, t.offset, 0, indent) }

func (p *printer) sub(t *Tensor, at, dim, indent int) string {
	left := len(t.shape) - dim
	if left == 0 {
		return p.scalar(t, at)
	}
	n, stride := t.shape[dim], t.strides[dim]
	cut := p.summarize && n > 2*printEdge
	var parts []string
	for i := 0; i < n; i++ {
		if cut && i == printEdge {
			dots := "..."
			if left == 1 {
				dots = " ..."
			}
			parts = append(parts, dots)
			i = n - printEdge
		}
		parts = append(parts, p.sub(t, at+i*stride, dim+1, indent+1))
	}
	pad := strings.Repeat(" ", indent+1)
	if left > 1 {
		return "[" + strings.Join(parts, ","+strings.Repeat("\n", left-1)+pad) + "]"
	}
	perLine := max(1, (printWidth-indent)/p.perElement)
	var lines []string
	for len(parts) > 0 {
		m := min(perLine, len(parts))
		lines = append(lines, strings.Join(parts[:m], ", "))
		parts = parts[m:]
	}
	return "[" + strings.Join(lines, ",\n"+pad) + "]"
}

func (p *printer) scalar(t *Tensor, at int) string {
	var re, im float64
	switch v := t.load(at).(type) {
	case complex64:
		re, im = float64(real(v)), float64(imag(v))
	case complex128:
		re, im = real(v), imag(v)
	default:
		return p.first.format(widen(v))
	}
	second := strings.TrimLeft(p.second.format(im)+"j", " ")
	if second[0] != '-' && second[0] != '+' {
		second = "+" + second
	}
	return p.first.format(re) + second
}

// column decides how numbers that stand below each other are written.
type column struct {
	width    int
	floating bool
	whole    bool // every finite element is a whole number
	science  bool
}

func newColumn(values []any) column {
	c := column{width: 1, whole: true}
	if len(values) == 0 {
		return c
	}
	if _, ok := values[0].(float64); !ok {
		for _, v := range values {
			c.width = max(c.width, len(plain(v)))
		}
		return c
	}
	c.floating = true
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		f, _ := v.(float64)
		if a := math.Abs(f); a != 0 && a <= math.MaxFloat64 {
			low, high = min(low, a), max(high, a)
			c.whole = c.whole && f == math.Ceil(f)
		}
	}
	if high == 0 {
		return c
	}
	c.science = high/low > 1000 || high > 1e8 || !c.whole && low < 1e-4
	for _, v := range values {
		if f, _ := v.(float64); f != 0 && !math.IsInf(f, 0) && !math.IsNaN(f) {
			c.width = max(c.width, len(c.number(f)))
		}
	}
	return c
}

func (c column) format(v any) string {
	s := plain(v)
	if c.floating {
		f, _ := v.(float64)
		s = c.number(f)
	}
	if pad := c.width - len(s); pad > 0 {
		return strings.Repeat(" ", pad) + s
	}
	return s
}

func (c column) number(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case c.science:
		return strconv.FormatFloat(f, 'e', printDigits, 64)
	case c.whole:
		return strconv.FormatFloat(f, 'f', 0, 64) + "."
	}
	return strconv.FormatFloat(f, 'f', printDigits, 64)
}

func plain(v any) string {
	if b, ok := v.(bool); ok {
		if b {
			return "True"
		}
		return "False"
	}
	return fmt.Sprint(v)
}

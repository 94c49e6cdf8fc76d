// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package py

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting that is printed, which also ends a value that contains itself.
const maxDepth = 200

// maxRepr bounds the text of a value: a list that contains another one many times is short on the wire and very long when
// printed.
const maxRepr = 64 << 10

// Repr writes a value as Python's repr does, so that a printed result looks as it does on the worker that sent it. Values of Go
// types that Python has no form for are written as Go writes them, and very long ones are cut short.
func Repr(v any) string {
	var b strings.Builder
	writeRepr(&b, v, 0)
	return b.String()
}

func writeRepr(b *strings.Builder, v any, depth int) {
	if depth > maxDepth || b.Len() > maxRepr {
		b.WriteString("...")
		return
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case *big.Int:
		b.WriteString(reprInt(v))
	case float64:
		b.WriteString(reprFloat(v))
	case complex128:
		b.WriteString(reprComplex(v))
	case string:
		b.WriteString(ReprString(cut(v)))
	case []byte:
		b.WriteString(reprBytes(v[:min(len(v), maxRepr)]))
	case ByteArray:
		b.WriteString("bytearray(" + reprBytes(v[:min(len(v), maxRepr)]) + ")")
	case []any:
		writeItems(b, "[", v, "]", depth)
	case Tuple:
		end := ")"
		if len(v) == 1 {
			end = ",)"
		}
		writeItems(b, "(", v, end, depth)
	case Set:
		if len(v) == 0 {
			b.WriteString("set()")
			return
		}
		writeItems(b, "{", v, "}", depth)
	case FrozenSet:
		if len(v) == 0 {
			b.WriteString("frozenset()")
			return
		}
		writeItems(b, "frozenset({", v, "})", depth)
	case *Dict:
		writePairs(b, v, depth)
	case Global:
		b.WriteString(v.String())
	case *Object:
		writeObject(b, v, depth)
	default:
		fmt.Fprint(b, v)
	}
}

// cut shortens a text to about maxRepr bytes, between two characters.
func cut(s string) string {
	if len(s) <= maxRepr {
		return s
	}
	n := maxRepr
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// maxDigits is Python's own bound on the digits of an integer that is printed.
const maxDigits = 4300

func reprInt(v *big.Int) string {
	if v != nil && v.BitLen() > maxDigits*10/3 {
		return fmt.Sprintf("<an integer of %d bits>", v.BitLen())
	}
	return v.String()
}

func writeItems(b *strings.Builder, begin string, items []any, end string, depth int) {
	b.WriteString(begin)
	for i, item := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > maxRepr {
			b.WriteString("...")
			break
		}
		writeRepr(b, item, depth+1)
	}
	b.WriteString(end)
}

func writePairs(b *strings.Builder, d *Dict, depth int) {
	b.WriteByte('{')
	if d == nil {
		d = &Dict{}
	}
	for i, p := range d.Pairs {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > maxRepr {
			b.WriteString("...")
			break
		}
		writePair(b, p, depth+1)
	}
	b.WriteByte('}')
}

func writePair(b *strings.Builder, p Pair, depth int) {
	writeRepr(b, p.Key, depth)
	b.WriteString(": ")
	writeRepr(b, p.Value, depth)
}

// writeObject names the class, followed by the state, if there is one, which only the class can read.
func writeObject(b *strings.Builder, o *Object, depth int) {
	b.WriteString("<")
	writeRepr(b, o.Class, depth+1)
	b.WriteString(" object")
	if len(o.Args) > 0 {
		b.WriteString(" ")
		writeRepr(b, o.Args, depth+1)
	}
	for _, state := range o.States {
		b.WriteString(" ")
		writeRepr(b, state, depth+1)
	}
	b.WriteString(">")
}

func reprFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f == 0 || math.Abs(f) >= 1e-4 && math.Abs(f) < 1e16:
		s := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	return strconv.FormatFloat(f, 'e', -1, 64)
}

func reprComplex(c complex128) string {
	part := func(f float64) string { return strings.TrimSuffix(reprFloat(f), ".0") }
	re, im := real(c), imag(c)
	if re == 0 && !math.Signbit(re) {
		return part(im) + "j"
	}
	sign := "+"
	if math.Signbit(im) && !math.IsNaN(im) {
		sign = ""
	}
	return "(" + part(re) + sign + part(im) + "j)"
}

func reprBytes(data []byte) string {
	quote := reprQuote(string(data))
	var b strings.Builder
	b.WriteString("b" + quote)
	for _, c := range data {
		switch {
		case c == '\\' || string(c) == quote:
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= 0x20 && c < 0x7f:
			b.WriteByte(c)
		default:
			writeControl(&b, rune(c))
		}
	}
	return b.String() + quote
}

// ReprString writes a string as Python's repr does.
func ReprString(s string) string {
	quote := reprQuote(s)
	var b strings.Builder
	b.WriteString(quote)
	for _, c := range s {
		switch {
		case c == '\\' || string(c) == quote:
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < 0x20 || c == 0x7f:
			writeControl(&b, c)
		default:
			b.WriteRune(c)
		}
	}
	return b.String() + quote
}

func reprQuote(s string) string {
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		return `"`
	}
	return "'"
}

func writeControl(b *strings.Builder, c rune) {
	switch c {
	case '\n':
		b.WriteString(`\n`)
	case '\r':
		b.WriteString(`\r`)
	case '\t':
		b.WriteString(`\t`)
	default:
		fmt.Fprintf(b, `\x%02x`, c)
	}
}

// String writes the tuple as Python does.
func (t Tuple) String() string { return Repr(t) }

// String writes the set as Python does.
func (s Set) String() string { return Repr(s) }

// String writes the set as Python does.
func (s FrozenSet) String() string { return Repr(s) }

// String writes the dict as Python does.
func (d *Dict) String() string { return Repr(d) }

// String names the object's class and shows what it is made from.
func (o *Object) String() string { return Repr(o) }

// String returns the class or function as "module.name".
func (g Global) String() string { return g.Module + "." + g.Name }

// String writes the bytes as Python does.
func (b ByteArray) String() string { return Repr(b) }

// String writes the entry as it stands in a dict.
func (p Pair) String() string {
	var b strings.Builder
	writePair(&b, p, 0)
	return b.String()
}

// String writes the value; its type is what a TorchScript function sees.
func (t Typed) String() string { return Repr(t.Value) }

// String writes the device as Python does.
func (d Device) String() string {
	kind, index, numbered := strings.Cut(string(d), ":")
	if numbered {
		return "device(type=" + ReprString(kind) + ", index=" + index + ")"
	}
	return "device(type=" + ReprString(kind) + ")"
}

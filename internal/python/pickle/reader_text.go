// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDigits bounds decimal integers, whose conversion is quadratic. CPython has the same bound.
const maxDigits = 4300

func parseNumber(op byte, line string) (any, bool) {
	if op == opFloat {
		f, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		return f, err == nil && !strings.ContainsAny(line, "xX_")
	}
	if op == opInt && (line == "00" || line == "01") {
		return line == "01", true
	}
	if op == opLong {
		line = strings.TrimSuffix(line, "L")
	}
	if len(line) > maxDigits || strings.Contains(line, "_") {
		return nil, false
	}
	if n, err := strconv.ParseInt(line, 10, 64); err == nil {
		return n, true
	}
	v, ok := new(big.Int).SetString(line, 10)
	if !ok {
		return nil, false
	}
	return shrink(v), true
}

func parseIndex(line string) (uint64, bool) {
	n, err := strconv.ParseUint(line, 10, 32)
	return n, err == nil
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func (r *reader) text(op byte) error {
	switch op {
	case opString:
		line, err := r.line()
		if err != nil {
			return err
		}
		s, ok := unquote(line)
		if !ok {
			return r.bad("%q is not a string literal", shorten(line))
		}
		return r.ascii(s)
	case opUnicode:
		line, err := r.line()
		if err != nil {
			return err
		}
		s, ok := rawUnicodeEscape(line)
		if !ok {
			return r.bad("%q is not a raw-unicode-escape string", shorten(line))
		}
		return r.push(s)
	case opBinString, opShortBinString:
		size := 4
		if op == opShortBinString {
			size = 1
		}
		b, err := r.sized(size)
		if err != nil {
			return err
		}
		return r.ascii(string(b))
	}
	size := 4
	switch op {
	case opShortBinUnicode:
		size = 1
	case opBinUnicode8:
		size = 8
	}
	b, err := r.sized(size)
	if err != nil {
		return err
	}
	if len(b) < maxWord {
		if v, ok := knownWords[string(b)]; ok {
			return r.push(v)
		}
	}
	s := string(b)
	if !r.limits.RawStrings && !validText(s) {
		return r.bad("a string that is not UTF-8")
	}
	return r.push(s)
}

// ascii takes a string of Python 2, which CPython 3 decodes as ASCII by default.
func (r *reader) ascii(s string) error {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return r.bad("a Python 2 string that is not ASCII")
		}
	}
	return r.push(s)
}

func (r *reader) bytes(op byte) error {
	size := 4
	switch op {
	case opShortBinBytes:
		size = 1
	case opBinBytes8, opByteArray8:
		size = 8
	}
	b, err := r.sized(size)
	if err != nil {
		return err
	}
	own := append(make([]byte, 0, len(b)), b...)
	if op == opByteArray8 {
		return r.push(&ByteArray{Data: own})
	}
	return r.push(Bytes(own))
}

// validText reports whether s is UTF-8, with lone surrogates in three bytes as Python's "surrogatepass" writes them.
func validText(s string) bool {
	if utf8.ValidString(s) {
		return true
	}
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		if c == utf8.RuneError && n == 1 {
			if i+3 > len(s) || s[i] != 0xed || s[i+1] < 0xa0 || s[i+1] > 0xbf || s[i+2] < 0x80 || s[i+2] > 0xbf {
				return false
			}
			n = 3
		}
		i += n
	}
	return true
}

// appendRune writes a code point, a lone surrogate included.
func appendRune(b []byte, c rune) []byte {
	if c >= 0xd800 && c < 0xe000 {
		return append(b, 0xed, byte(0x80|c>>6&0x3f), byte(0x80|c&0x3f)) //nolint:gosec // masked
	}
	return utf8.AppendRune(b, c)
}

// rawUnicodeEscape decodes Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX.
func rawUnicodeEscape(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			out = appendRune(out, rune(s[i]))
			i++
			continue
		}
		// A run of backslashes escapes only when its last one is at an odd place.
		run := i
		for run < len(s) && s[run] == '\\' {
			run++
		}
		count := run - i
		digits := 0
		if run < len(s) && count%2 == 1 {
			switch s[run] {
			case 'u':
				digits = 4
			case 'U':
				digits = 8
			}
		}
		if digits == 0 {
			out = append(out, s[i:run]...)
			i = run
			continue
		}
		out = append(out, s[i:run-1]...)
		if run+1+digits > len(s) {
			return "", false
		}
		c, err := strconv.ParseUint(s[run+1:run+1+digits], 16, 32)
		if err != nil || c > utf8.MaxRune {
			return "", false
		}
		out = appendRune(out, rune(c))
		i = run + 1 + digits
	}
	return string(out), true
}

// unquote decodes the quoted string of protocol 0.
func unquote(line string) (string, bool) {
	line = strings.TrimRight(line, " \t\r")
	if len(line) < 2 || line[0] != line[len(line)-1] || line[0] != '\'' && line[0] != '"' {
		return "", false
	}
	line = line[1 : len(line)-1]
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		if line[i] != '\\' {
			out = append(out, line[i])
			continue
		}
		i++
		if i >= len(line) {
			return "", false
		}
		switch c := line[i]; c {
		case '\\', '\'', '"':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'a', 'b', 'f', 'v':
			out = append(out, map[byte]byte{'a': 7, 'b': 8, 'f': 12, 'v': 11}[c])
		case 'x':
			if i+3 > len(line) {
				return "", false
			}
			v, err := strconv.ParseUint(line[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			out = append(out, byte(v))
			i += 2
		case '0', '1', '2', '3', '4', '5', '6', '7':
			end := i
			for end < len(line) && end < i+3 && line[end] >= '0' && line[end] <= '7' {
				end++
			}
			v, err := strconv.ParseUint(line[i:end], 8, 16)
			if err != nil {
				return "", false
			}
			out = append(out, byte(v)) //nolint:gosec // Python keeps the low eight bits too
			i = end - 1
		default:
			out = append(out, '\\', c)
		}
	}
	return string(out), true
}

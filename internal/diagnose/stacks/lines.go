// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

// lineAt finds the source line of an instruction in the location table of its code object (the format of Python 3.11 and
// later). unit is the index of the two-byte instruction. It returns 0 when the table does not say.
func lineAt(table []byte, first, unit int) int {
	line := first
	d := varints{rest: table}
	for pos := 0; len(d.rest) > 0; {
		b := d.rest[0]
		d.rest = d.rest[1:]
		located := true
		switch kind := b >> 3 & 15; {
		case kind == 15:
			located = false
		case kind == 14:
			line += d.signed()
			d.unsigned()
			d.unsigned()
			d.unsigned()
		case kind == 13:
			line += d.signed()
		case kind >= 10:
			line += int(kind) - 10
			d.skip(2)
		default:
			d.skip(1)
		}
		if pos += int(b&7) + 1; unit < pos {
			if !located {
				return 0
			}
			return line
		}
	}
	return 0
}

// varints reads the numbers of a location table: six bits a byte, the lowest first.
type varints struct{ rest []byte }

func (d *varints) skip(n int) { d.rest = d.rest[min(n, len(d.rest)):] }

func (d *varints) unsigned() int {
	v := 0
	for shift := 0; len(d.rest) > 0; shift += 6 {
		b := d.rest[0]
		d.rest = d.rest[1:]
		if shift < 36 {
			v |= int(b&63) << shift
		}
		if b&64 == 0 {
			break
		}
	}
	return v
}

func (d *varints) signed() int {
	v := d.unsigned()
	if v&1 == 1 {
		return -(v >> 1)
	}
	return v >> 1
}

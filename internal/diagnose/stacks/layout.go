// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"encoding/binary"
	"fmt"
)

// layout holds byte offsets inside the structures of one CPython version, from the start of the structure that the
// comment names. A zero in an optional field means that it is not known.
type layout struct {
	interpHead                         uint64 // _PyRuntimeState
	interpNext, threads                uint64 // PyInterpreterState
	gil                                uint64 // the interpreter lock: where it is, as gilIn says
	gilIn                              gilIn
	gilLocked, gilHolder               uint64 // _gil_runtime_state
	tsNext, tsNative, tsFrame          uint64 // PyThreadState
	indirect                           bool   // 3.11, 3.12: tsFrame points to a _PyCFrame
	cframe                             uint64 // where that has the frame
	fPrev, fCode, fInstr, fOwner       uint64 // _PyInterpreterFrame
	coFile, coName, coTable, coFirst   uint64 // PyCodeObject
	coCode                             uint64
	bytesLen, bytesData                uint64 // PyBytesObject
	strState, strLen, strASCII, strUCS uint64 // PyASCIIObject; its size; the size of PyCompactUnicodeObject

	// For the values of arguments.
	fLocals             uint64 // _PyInterpreterFrame
	coArgs, coNames     uint64 // PyCodeObject
	obType, tpName      uint64 // PyObject, PyTypeObject
	tupleItems          uint64 // PyTupleObject
	longTag, longDigits uint64 // PyLongObject
	longSize            bool   // 3.11: longTag is where a signed number of digits is
}

// gilIn says where an interpreter's lock is: it moved from version to version.
type gilIn int

const (
	gilInRuntime gilIn = iota // 3.11: one for all interpreters
	gilBehind                 // 3.12: the interpreter points to it
	gilInInterp               // 3.13 and later
)

// ownedByC is the first owner of frames that carry no Python code.
const ownedByC = 3

// fixed has the versions before _Py_DebugOffsets, from their headers (LP64). They are stable within a minor version.
var fixed = map[uint32]layout{
	0x030b: {
		interpHead: 40, gil: 360, gilIn: gilInRuntime, gilLocked: 16, gilHolder: 8, threads: 16, tsNext: 8, tsNative: 160,
		tsFrame: 56, indirect: true, cframe: 8,
		fPrev: 48, fCode: 32, fInstr: 56, fOwner: 69, coFile: 112, coName: 128, coTable: 136, coFirst: 72,
		coCode: 184, bytesLen: 16, bytesData: 32, strState: 32, strLen: 16, strASCII: 48, strUCS: 72,
		fLocals: 72, coArgs: 56, coNames: 96, obType: 8, tpName: 24, tupleItems: 24, longTag: 16, longDigits: 24, longSize: true,
	},
	0x030c: {
		interpHead: 40, gil: 384, gilIn: gilBehind, gilLocked: 16, gilHolder: 8, threads: 72, tsNext: 8, tsNative: 144,
		tsFrame: 56, indirect: true, cframe: 0,
		fPrev: 8, fCode: 0, fInstr: 56, fOwner: 70, coFile: 112, coName: 128, coTable: 136, coFirst: 68,
		coCode: 192, bytesLen: 16, bytesData: 32, strState: 32, strLen: 16, strASCII: 40, strUCS: 56,
		fLocals: 72, coArgs: 52, coNames: 96, obType: 8, tpName: 24, tupleItems: 24, longTag: 16, longDigits: 24,
	},
}

// cookie begins _Py_DebugOffsets, which begins _PyRuntime in 3.13 and later.
const cookie = "xdebugpy"

// tableSize is enough for every field of debugOffsets.
const tableSize = 1024

// debugOffsets names the 64-bit fields of _Py_DebugOffsets in order. Those with a + came with 3.14; none was removed.
var debugOffsets = []struct {
	group  string
	fields []string
}{
	{"", []string{"version", "free_threaded"}},
	{"runtime", []string{"size", "finalizing", "interpreters_head"}},
	{"interp", []string{
		"size", "id", "next", "threads_head", "+threads_main", "gc", "modules", "sysdict", "builtins",
		"ceval_gil", "gil", "gil_enabled", "gil_locked", "gil_holder", "+code_gen", "+tlbc_gen",
	}},
	{"thread", []string{"size", "prev", "next", "interp", "current_frame", "thread_id", "native_thread_id", "chunk", "status"}},
	{"frame", []string{"size", "previous", "executable", "instr_ptr", "localsplus", "owner", "+stackpointer", "+tlbc_index"}},
	{"code", []string{
		"size", "filename", "name", "qualname", "linetable", "firstlineno", "argcount", "localsplusnames",
		"localspluskinds", "co_code_adaptive", "+co_tlbc",
	}},
	{"object", []string{"size", "ob_type"}},
	{"type", []string{"size", "tp_name", "tp_repr", "tp_flags"}},
	{"tuple", []string{"size", "ob_item", "ob_size"}},
	{"list", []string{"size", "ob_item", "ob_size"}},
	{"set", []string{"+size", "+used", "+table", "+mask"}},
	{"dict", []string{"size", "ma_keys", "ma_values"}},
	{"float", []string{"size", "ob_fval"}},
	{"long", []string{"size", "lv_tag", "ob_digit"}},
	{"bytes", []string{"size", "ob_size", "ob_sval"}},
	{"str", []string{"size", "state", "length", "asciiobject_size"}},
}

// maxOffset bounds every offset that a process claims: its largest structure, the interpreter state, has about 300 KiB.
const maxOffset = 1 << 20

// layoutOf builds the layout from the table that a 3.13 or 3.14 process carries.
func layoutOf(table []byte) (layout, uint32, error) {
	version := uint32(binary.LittleEndian.Uint64(table[8:])) //nolint:gosec // the upper half is zero
	minor := version >> 16
	if minor != 0x030d && minor != 0x030e {
		return layout{}, version, fmt.Errorf("%w: no layout for Python %s", errUnsupported, versionString(version))
	}
	v, at := map[string]uint64{}, len(cookie)
	for _, g := range debugOffsets {
		for _, f := range g.fields {
			if f[0] == '+' {
				if minor < 0x030e {
					continue
				}
				f = f[1:]
			}
			name := g.group + "." + f
			v[name] = binary.LittleEndian.Uint64(table[at:])
			if g.group != "" && v[name] > maxOffset {
				return layout{}, version, fmt.Errorf("%w: offset %s of Python %s is %d", errCorrupt, name, versionString(version), v[name])
			}
			at += 8
		}
	}
	if v[".free_threaded"] != 0 { // bytecode per thread (co_tlbc), and in 3.14 another string header
		return layout{}, version, fmt.Errorf("%w: a free-threaded Python %s", errUnsupported, versionString(version))
	}
	return layout{
		interpHead: v["runtime.interpreters_head"],
		interpNext: v["interp.next"], threads: v["interp.threads_head"],
		gilIn: gilInInterp, gilLocked: v["interp.gil_locked"], gilHolder: v["interp.gil_holder"], // from the interpreter on
		tsNext: v["thread.next"], tsNative: v["thread.native_thread_id"], tsFrame: v["thread.current_frame"],
		fPrev: v["frame.previous"], fCode: v["frame.executable"], fInstr: v["frame.instr_ptr"], fOwner: v["frame.owner"],
		coFile: v["code.filename"], coName: v["code.qualname"], coTable: v["code.linetable"],
		coFirst: v["code.firstlineno"], coCode: v["code.co_code_adaptive"],
		bytesLen: v["bytes.ob_size"], bytesData: v["bytes.ob_sval"],
		strState: v["str.state"], strLen: v["str.length"], strASCII: v["str.asciiobject_size"],
		strUCS:  v["str.asciiobject_size"] + 16,
		fLocals: v["frame.localsplus"], coArgs: v["code.argcount"], coNames: v["code.localsplusnames"],
		obType: v["object.ob_type"], tpName: v["type.tp_name"], tupleItems: v["tuple.ob_item"],
		longTag: v["long.lv_tag"], longDigits: v["long.ob_digit"],
	}, version, nil
}

func versionString(v uint32) string { return fmt.Sprintf("%d.%d.%d", v>>24, v>>16&255, v>>8&255) }

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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read of one process, whatever its memory says.
const (
	maxInterpreters = 64
	maxThreads      = 4096
	maxFrames       = 512
	maxString       = 4096
	maxTable        = 1 << 20
	maxArgs         = 32
	maxTries        = 9
)

// walker reads one process. It never stops it.
type walker struct {
	mem     io.ReaderAt // its memory: the offset is the address
	runtime uint64      // address of _PyRuntime
	version uint32      // PY_VERSION_HEX
	l       layout
	codes   map[uint64]*code
}

// newWalker finds out how the process at hand lays out its structures. versionAt is the address of Py_Version, or 0.
func newWalker(mem io.ReaderAt, runtime, versionAt uint64) (*walker, error) {
	w := &walker{mem: mem, runtime: runtime, codes: map[uint64]*code{}}
	table := make([]byte, tableSize)
	if err := w.read(table, runtime); err != nil {
		return nil, fmt.Errorf("stacks: read the runtime: %w", err)
	}
	var err error
	if string(table[:len(cookie)]) == cookie {
		w.l, w.version, err = layoutOf(table)
		return w, err
	}
	if versionAt == 0 {
		return nil, fmt.Errorf("%w: Python before 3.11", errUnsupported)
	}
	w.version = uint32(w.word(versionAt)) //nolint:gosec // a C unsigned long that holds 32 bits
	var known bool
	if w.l, known = fixed[w.version>>16]; !known {
		return nil, fmt.Errorf("%w: no layout for Python %s", errUnsupported, versionString(w.version))
	}
	return w, nil
}

func (w *walker) read(p []byte, addr uint64) error {
	if addr == 0 || addr >= 1<<63 {
		return fmt.Errorf("%w: address %#x", errCorrupt, addr)
	}
	_, err := w.mem.ReadAt(p, int64(addr)) //nolint:gosec // checked above
	return err
}

// word reads eight bytes, zero if they cannot be read.
func (w *walker) word(addr uint64) uint64 {
	var b [8]byte
	if w.read(b[:], addr) != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

// object clears the tag bits that 3.14 keeps in references.
func object(ref uint64) uint64 { return ref &^ 7 }

// call is a frame before its code was looked at.
type call struct{ code, instr, addr uint64 }

// threads reads all threads of all interpreters.
func (w *walker) threads(ctx context.Context) ([]Thread, error) {
	var all []Thread
	interp := w.word(w.runtime + w.l.interpHead)
	if interp == 0 {
		return nil, ErrNoInterpreter
	}
	for i := 0; interp != 0 && i < maxInterpreters; i++ {
		holder := w.gilHolder(interp)
		for ts := w.word(interp + w.l.threads); ts != 0 && len(all) < maxThreads; ts = w.word(ts + w.l.tsNext) {
			if err := ctx.Err(); err != nil {
				return all, fmt.Errorf("stacks: %w", context.Cause(ctx))
			}
			t := Thread{ID: int(int32(w.word(ts + w.l.tsNative))), HoldsGIL: ts == holder} //nolint:gosec // a thread number
			var calls []call
			calls, t.Truncated, t.Moving = w.settled(ts)
			t.Frames = w.frames(calls)
			all = append(all, t)
		}
		interp = w.word(interp + w.l.interpNext)
	}
	return all, nil
}

// gilHolder returns the thread that holds the lock of an interpreter, 0 if none does.
func (w *walker) gilHolder(interp uint64) uint64 {
	gil := interp
	switch w.l.gilIn {
	case gilInRuntime:
		gil = w.runtime + w.l.gil
	case gilBehind:
		gil = w.word(interp + w.l.gil)
	case gilInInterp:
	}
	if uint32(w.word(gil+w.l.gilLocked)) != 1 { //nolint:gosec // a C int
		return 0
	}
	return w.word(gil + w.l.gilHolder)
}

// settled reads the calls of a thread until two readings agree.
func (w *walker) settled(ts uint64) (calls []call, truncated, moving bool) {
	calls, truncated = w.calls(ts)
	for range maxTries {
		again, cut := w.calls(ts)
		if slices.Equal(calls, again) {
			return calls, truncated, false
		}
		calls, truncated = again, cut
	}
	return calls, truncated, true
}

// calls walks the frames of a thread, innermost first.
func (w *walker) calls(ts uint64) (calls []call, truncated bool) {
	f := w.word(ts + w.l.tsFrame)
	if w.l.indirect && f != 0 {
		f = w.word(f + w.l.cframe)
	}
	buf := make([]byte, max(w.l.fPrev, w.l.fCode, w.l.fInstr, w.l.fOwner)+8)
	at := func(off uint64) uint64 { return binary.LittleEndian.Uint64(buf[off:]) }
	for range 2 * maxFrames { // twice: frames of C are skipped
		if f == 0 {
			return calls, false
		}
		if len(calls) == maxFrames || w.read(buf, f) != nil {
			return calls, true
		}
		if c := object(at(w.l.fCode)); c != 0 && buf[w.l.fOwner] < ownedByC {
			calls = append(calls, call{c, at(w.l.fInstr), f})
		}
		f = at(w.l.fPrev)
	}
	return calls, true
}

func (w *walker) frames(calls []call) []Frame {
	frames := make([]Frame, len(calls))
	for i, f := range calls {
		c := w.code(f.code)
		frames[i] = Frame{Func: c.name, File: c.file, Line: w.line(c, f)}
		if strings.Contains(c.file, "/torch/distributed/") || strings.HasSuffix(c.file, SpawnFile) {
			frames[i].Args = strings.Join(w.args(f), " ")
		}
		if !StartsTarget(frames[i]) {
			continue
		}
		for k := range i {
			if frames[k].Args == "" && !Library(frames[k].File) {
				frames[k].Args = strings.Join(slices.DeleteFunc(w.args(calls[k]), notNumber), " ")
			}
		}
	}
	return frames
}

// targetNumbers are what programs call a process's place in its job. Their other arguments are not needed.
var targetNumbers = []string{"rank", "local_rank", "world_size"}

func notNumber(arg string) bool {
	name, value, _ := strings.Cut(arg, "=")
	_, err := strconv.Atoi(value)
	return err != nil || !slices.Contains(targetNumbers, name)
}

func (w *walker) line(c *code, f call) int {
	start := f.code + w.l.coCode
	if f.instr < start {
		return c.first
	}
	return lineAt(c.table, c.first, int(min((f.instr-start)/2, 1<<30)))
}

// code is what is read of a code object.
type code struct {
	file, name string
	first      int
	table      []byte
}

func (w *walker) code(addr uint64) *code {
	if c := w.codes[addr]; c != nil {
		return c
	}
	c := &code{
		file:  w.str(w.word(addr + w.l.coFile)),
		name:  w.str(w.word(addr + w.l.coName)),
		first: int(int32(w.word(addr + w.l.coFirst))), //nolint:gosec // a C int
		table: w.bytes(w.word(addr + w.l.coTable)),
	}
	w.codes[addr] = c
	return c
}

func (w *walker) bytes(addr uint64) []byte {
	if addr == 0 {
		return nil
	}
	n := w.word(addr + w.l.bytesLen)
	if n > maxTable {
		return nil
	}
	b := make([]byte, n)
	if w.read(b, addr+w.l.bytesData) != nil {
		return nil
	}
	return b
}

// str reads a compact string object; "?" stands for one that cannot be read.
func (w *walker) str(addr uint64) string {
	if addr == 0 {
		return "?"
	}
	n, state := w.word(addr+w.l.strLen), w.word(addr+w.l.strState)
	width, ascii := state>>2&7, state>>6&1 == 1
	if n > maxString || width != 1 && width != 2 && width != 4 {
		return "?"
	}
	from := w.l.strUCS
	if ascii {
		from = w.l.strASCII
	}
	b := make([]byte, n*width)
	if w.read(b, addr+from) != nil {
		return "?"
	}
	if ascii {
		return string(b)
	}
	runes := make([]rune, n)
	for i := range runes {
		switch width {
		case 1:
			runes[i] = rune(b[i])
		case 2:
			runes[i] = rune(binary.LittleEndian.Uint16(b[2*i:]))
		default:
			runes[i] = rune(binary.LittleEndian.Uint32(b[4*i:])) //nolint:gosec // a code point; others print as one that is invalid
		}
	}
	return string(runes)
}

// args returns the positional arguments of a call whose values are plain or tensors, as name=value.
func (w *walker) args(f call) []string {
	var out []string
	names := w.word(f.code + w.l.coNames)
	if names == 0 {
		return nil
	}
	count := uint64(uint32(w.word(f.code + w.l.coArgs))) //nolint:gosec // a C int
	for i := range min(count, maxArgs) {
		if v := w.value(object(w.word(f.addr + w.l.fLocals + 8*i))); v != "" {
			out = append(out, w.str(w.word(names+w.l.tupleItems+8*i))+"="+v)
		}
	}
	return out
}

// value returns a plain value as Python writes it, the shape of a tensor, "" for any other.
func (w *walker) value(obj uint64) string {
	if obj == 0 {
		return ""
	}
	kind := w.typeName(obj)
	switch kind {
	case "Tensor", "Parameter":
		return w.tensor(obj)
	case "NoneType":
		return "None"
	case "str":
		return strconv.Quote(w.str(obj))
	case "bool":
		return strconv.FormatBool(uint32(w.word(obj+w.l.longDigits)) == 1) //nolint:gosec // a digit
	case "int":
		tag, n := w.word(obj+w.l.longTag), int64(0)
		digits, negative := tag>>3, tag&3 == 2
		if w.l.longSize {
			size := int64(tag) //nolint:gosec // negative for a negative number
			digits, negative = uint64(max(size, -size)), size < 0
		}
		if digits > 2 {
			return "" // over 60 bits: no rank and no tag
		}
		for i := range digits { // of 30 bits
			n |= int64(uint32(w.word(obj+w.l.longDigits+4*i))) << (30 * i) //nolint:gosec // a digit
		}
		if negative {
			n = -n
		}
		return strconv.FormatInt(n, 10)
	}
	return ""
}

func (w *walker) typeName(obj uint64) string {
	var b [16]byte
	if w.read(b[:], w.word(w.word(obj+w.l.obType)+w.l.tpName)) != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b[:]), "\x00")
	return name
}

// A tensor of PyTorch is a Python object with a reference to c10::TensorImpl. Where that has its parts differs from version to version,
// but they follow one another: the number of dimensions, room for five sizes and five strides, the place of the first element, the
// number of elements and the type. So they are looked for, and taken where they agree with each other.
const (
	implSize  = 320 // of TensorImpl, or more
	implFirst = 16  // its reference count is before that
	maxDims   = 5   // that have room there
	maxNumber = 1 << 40

	dimsSizes, dimsStrides, dimsOffset, dimsCount, dimsType, dimsEnd = 8, 8 + 8*maxDims, 8 + 16*maxDims, 16 + 16*maxDims, 24 +
		16*maxDims, 32 + 16*maxDims
)

// scalarTypes are the names of c10::ScalarType.
var scalarTypes = []string{
	"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool",
	"qint8", "quint8", "qint32", "bfloat16",
}

// tensor returns the type and the shape of a tensor: "float32[4,2]"; "" if they cannot be told.
func (w *walker) tensor(obj uint64) string {
	impl := make([]byte, implSize)
	// The reference is the first field, or follows a flag that says whose it is.
	for _, at := range []uint64{w.word(obj + 16), w.word(obj + 24)} {
		if at < 1<<12 || at%8 != 0 || w.read(impl, at) != nil {
			continue
		}
		for from := implFirst; from+dimsEnd <= len(impl); from += 8 {
			if text := shape(impl[from:]); text != "" {
				return text
			}
		}
	}
	return ""
}

// shape reads the type and the shape from where they may be, "" if they are not there.
func shape(b []byte) string {
	at := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	dims, kind := at(0), int(binary.LittleEndian.Uint16(b[dimsType:]))
	if dims == 0 || dims > maxDims || at(dimsOffset) > maxNumber || kind >= len(scalarTypes) {
		return ""
	}
	sizes, count := make([]string, dims), uint64(1)
	for i := range sizes {
		size, stride := at(dimsSizes+8*i), at(dimsStrides+8*i)
		if size > maxNumber || stride > maxNumber || size > 0 && count > maxNumber/size {
			return ""
		}
		sizes[i] = strconv.FormatUint(size, 10)
		count *= size
	}
	if count == 0 || count != at(dimsCount) {
		return ""
	}
	return scalarTypes[kind] + "[" + strings.Join(sizes, ",") + "]"
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package safetensors reads and writes tensors in the safetensors format, which PyTorch users open with
// safetensors.torch.load_file and write with save_file.
//
// A file consists of eight bytes with the length of a header, the header as JSON, and the elements of all tensors one
// after another, little-endian and row-major. Files are not trusted: lengths are checked against the size of the file
// before memory is allocated, tensors must cover the data exactly, and nothing in a file can be executed.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// MaxHeader is the largest header in bytes, the limit of the format.
const MaxHeader = 100_000_000

// File is what a file holds.
type File struct {
	// Tensors by name.
	Tensors map[string]*tensor.Tensor
	// Metadata is free text; Python's libraries write {"format": "pt"} for PyTorch.
	Metadata map[string]string
}

// String reports how many tensors the file has, and how large they are.
func (f *File) String() string {
	bytes := 0
	for _, t := range f.Tensors {
		bytes += t.NBytes()
	}
	return fmt.Sprintf("safetensors: %d tensors of %d bytes", len(f.Tensors), bytes)
}

// names of the element types, by the format.
var names = map[tensor.DType]string{
	tensor.Bool: "BOOL", tensor.Uint8: "U8", tensor.Int8: "I8", tensor.Float8E5M2: "F8_E5M2", tensor.Float8E4M3FN: "F8_E4M3",
	tensor.Int16: "I16", tensor.Uint16: "U16", tensor.Float16: "F16", tensor.BFloat16: "BF16", tensor.Int32: "I32",
	tensor.Uint32: "U32", tensor.Float32: "F32", tensor.Float64: "F64", tensor.Int64: "I64", tensor.Uint64: "U64",
	tensor.Complex64: "C64",
}

var types = func() map[string]tensor.DType {
	m := map[string]tensor.DType{}
	for dt, name := range names {
		m[name] = dt
	}
	return m
}()

// entry is what a header says about a tensor.
type entry struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets []int  `json:"data_offsets"`
}

// UnmarshalJSON reads an entry whose names are exactly those, once each, as the format's own library does. Others are ignored.
func (e *entry) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return fmt.Errorf("%.20s is not an object", text)
	}
	fields := map[string]any{"dtype": &e.DType, "shape": &e.Shape, "data_offsets": &e.Offsets}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		into, known := fields[name]
		if !known {
			into = &json.RawMessage{}
		}
		if known && seen[name] {
			return fmt.Errorf("%s appears twice", name)
		}
		seen[name] = true
		if err := d.Decode(into); err != nil {
			return err
		}
	}
	return nil
}

const metadataKey = "__metadata__"

func bad(format string, args ...any) error {
	return cohort.Newf("safetensors: read", cohort.Protocol, format, args...)
}

// Load reads a file.
func Load(path string) (*File, error) {
	f, err := os.Open(path) //nolint:gosec // the caller names it
	if err != nil {
		return nil, cohort.Wrap("safetensors: load", codeOf(err), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, cohort.Wrap("safetensors: load", cohort.Unavailable, err)
	}
	return Read(f, info.Size())
}

func codeOf(err error) cohort.Code {
	if errors.Is(err, os.ErrNotExist) {
		return cohort.NotFound
	}
	return cohort.Unavailable
}

// Read reads size bytes of r.
func Read(r io.ReaderAt, size int64) (*File, error) {
	var prefix [8]byte
	if size < 8 {
		return nil, bad("%d bytes are too few for a header", size)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, bad("header length: %v", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > MaxHeader {
		return nil, bad("the header claims %d bytes: limit %d", n, MaxHeader)
	}
	if int64(n) > size-8 {
		return nil, bad("the header claims %d bytes, the file has %d", n, size-8)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil {
		return nil, bad("header: %v", err)
	}
	entries, meta, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	data := size - 8 - int64(n)
	order, err := checkLayout(entries, data)
	if err != nil {
		return nil, err
	}
	out := &File{Tensors: make(map[string]*tensor.Tensor, len(entries)), Metadata: meta}
	for _, name := range order {
		e := entries[name]
		t, err := tensor.New(types[e.DType], e.Shape...)
		if err != nil {
			return nil, bad("tensor %q: %v", name, err)
		}
		into, err := t.Bytes()
		if err != nil {
			return nil, err
		}
		if len(into) > 0 {
			if _, err := r.ReadAt(into, 8+int64(n)+int64(e.Offsets[0])); err != nil {
				return nil, bad("tensor %q: %v", name, err)
			}
		}
		swap(into, t.DType())
		out.Tensors[name] = t
	}
	return out, nil
}

// Decode reads a file that is in memory.
func Decode(data []byte) (*File, error) { return Read(bytes.NewReader(data), int64(len(data))) }

// parseHeader reads the JSON, refusing names that appear twice.
func parseHeader(header []byte) (map[string]entry, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, bad("the header does not start with {")
	}
	if !utf8.Valid(header) {
		return nil, nil, bad("the header is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(header))
	if _, err := d.Token(); err != nil {
		return nil, nil, bad("header: %v", err)
	}
	entries := map[string]entry{}
	var meta map[string]string
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, nil, bad("header: %v", err)
		}
		name, _ := token.(string)
		if name == metadataKey {
			if meta != nil {
				return nil, nil, bad("two entries %s", metadataKey)
			}
			if err := d.Decode(&meta); err != nil {
				return nil, nil, bad("%s: %v", metadataKey, err)
			}
			if meta == nil {
				meta = map[string]string{}
			}
			continue
		}
		if _, twice := entries[name]; twice {
			return nil, nil, bad("tensor %q appears twice", name)
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			return nil, nil, bad("tensor %q: %v", name, err)
		}
		entries[name] = e
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, bad("header: %v", err)
	}
	if rest := bytes.TrimRight(header[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return nil, nil, bad("%d bytes behind the header", len(rest))
	}
	return entries, meta, nil
}

// checkLayout checks that the tensors cover the data without gaps and overlaps, and returns them in that order.
func checkLayout(entries map[string]entry, data int64) ([]string, error) {
	for name, e := range entries {
		dt, ok := types[e.DType]
		if !ok {
			return nil, bad("tensor %q: element type %q is not known", name, e.DType)
		}
		if len(e.Offsets) != 2 || e.Shape == nil {
			return nil, bad("tensor %q: shape %v with data_offsets %v", name, e.Shape, e.Offsets)
		}
		if len(e.Shape) > tensor.MaxDims {
			return nil, bad("tensor %q has %d dimensions: limit %d", name, len(e.Shape), tensor.MaxDims)
		}
		from, to := int64(e.Offsets[0]), int64(e.Offsets[1])
		if from < 0 || to < from || to > data {
			return nil, bad("tensor %q lies at %v of %d bytes", name, e.Offsets, data)
		}
		if want := size(dt, e.Shape, to-from); want != to-from {
			return nil, bad("tensor %q of %s%v does not fit %d bytes", name, e.DType, e.Shape, to-from)
		}
	}
	order := slices.SortedFunc(maps.Keys(entries), func(a, b string) int {
		x, y := entries[a].Offsets, entries[b].Offsets
		return slices.Compare(x, y)
	})
	at := 0
	for _, name := range order {
		if entries[name].Offsets[0] != at {
			return nil, bad("tensor %q begins at %d, want %d: tensors must follow each other", name, entries[name].Offsets[0], at)
		}
		at = entries[name].Offsets[1]
	}
	if int64(at) != data {
		return nil, bad("the tensors cover %d of %d bytes", at, data)
	}
	return order, nil
}

// size is the size of a tensor, or -1 when it is more than limit.
func size(dt tensor.DType, shape []int, limit int64) int64 {
	if slices.ContainsFunc(shape, func(d int) bool { return d < 0 }) {
		return -1
	}
	if slices.Contains(shape, 0) {
		return 0
	}
	n := int64(dt.Size())
	for _, d := range shape {
		if int64(d) > limit/n {
			return -1
		}
		n *= int64(d)
	}
	return n
}

// swap turns little-endian elements into the machine's order and back.
func swap(data []byte, dt tensor.DType) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return
	}
	n := dt.Size()
	if dt.Complex() {
		n /= 2
	}
	for i := 0; i+n <= len(data); i += n {
		slices.Reverse(data[i : i+n])
	}
}

// Write writes tensors to w.
func (f *File) Write(w io.Writer) error {
	const op = "safetensors: write"
	header, order, err := f.header()
	if err != nil {
		return err
	}
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(len(header)))
	for _, part := range [][]byte{prefix[:], header} {
		if _, err := w.Write(part); err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	for _, name := range order {
		t, err := f.Tensors[name].Contiguous()
		if err != nil {
			return err
		}
		data, err := t.Bytes()
		if err != nil {
			return err
		}
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			data = bytes.Clone(data)
			swap(data, t.DType())
		}
		if _, err := w.Write(data); err != nil {
			return cohort.Wrap(op, cohort.Unavailable, err)
		}
	}
	return nil
}

// header lists wide types first, as the format's own library does, so that elements are aligned.
func (f *File) header() ([]byte, []string, error) {
	const op = "safetensors: write"
	order := slices.SortedFunc(maps.Keys(f.Tensors), func(a, b string) int {
		x, y := f.Tensors[a], f.Tensors[b]
		if x != nil && y != nil && x.DType().Size() != y.DType().Size() {
			return y.DType().Size() - x.DType().Size()
		}
		return bytes.Compare([]byte(a), []byte(b))
	})
	var out bytes.Buffer
	out.WriteByte('{')
	for key, value := range f.Metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument, "metadata %q: %q is not UTF-8", key, value)
		}
	}
	if f.Metadata != nil {
		text, err := json.Marshal(f.Metadata)
		if err != nil {
			return nil, nil, cohort.Wrap(op, cohort.InvalidArgument, err)
		}
		fmt.Fprintf(&out, "%q:%s", metadataKey, text)
	}
	at := 0
	for _, name := range order {
		t := f.Tensors[name]
		if t == nil || name == metadataKey || !utf8.ValidString(name) {
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument, "tensor %q: no tensor, or not a name", name)
		}
		dt, ok := names[t.DType()]
		if !ok {
			return nil, nil, cohort.Newf(op, cohort.InvalidArgument, "tensor %q: the format has no %v", name, t.DType())
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, nil, cohort.Wrap(op, cohort.InvalidArgument, err)
		}
		text, err := json.Marshal(entry{dt, append([]int{}, t.Shape()...), []int{at, at + t.NBytes()}})
		if err != nil {
			return nil, nil, cohort.Wrap(op, cohort.InvalidArgument, err)
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		out.Write(key)
		out.WriteByte(':')
		out.Write(text)
		at += t.NBytes()
	}
	out.WriteByte('}')
	for out.Len()%8 != 0 {
		out.WriteByte(' ')
	}
	if out.Len() > MaxHeader {
		return nil, nil, cohort.Newf(op, cohort.TooLarge, "the header has %d bytes: limit %d", out.Len(), MaxHeader)
	}
	return out.Bytes(), order, nil
}

// Save writes a file. It is written beside the old one, which it replaces when it is complete.
func (f *File) Save(path string) error {
	const op = "safetensors: save"
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return cohort.Wrap(op, cohort.Unavailable, err)
	}
	defer os.Remove(tmp.Name())
	err = f.Write(tmp)
	if err == nil {
		err = tmp.Sync()
	}
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Chmod(tmp.Name(), 0o644) //nolint:gosec // like any file that a program writes for others to read
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return cohort.Wrap(op, cohort.Unavailable, err)
	}
	return nil
}

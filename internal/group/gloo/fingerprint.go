// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// Fingerprint is what a rank publishes about a collective that it is going to run, where PyTorch's ranks run with
// TORCH_DISTRIBUTED_DEBUG=DETAIL. On the wire it is a tensor of 64-bit integers.
type Fingerprint struct {
	Op       uint8  // PyTorch's number of the operation
	Sequence uint64 // operations of the group so far; not in Torch113
	Tensors  []tensorPrint
}

// tensorPrint is the part of a fingerprint about one tensor.
type tensorPrint struct {
	DType  uint8 // PyTorch's number of the element type
	Device uint8 // PyTorch's number of the device type; 0 is the CPU
	Shape  []int64
}

// Add appends a tensor. Complex numbers that go as pairs are real ones with a dimension more.
func (f *Fingerprint) Add(dt tensor.DType, shape []int, pairs bool) {
	p := tensorPrint{DType: uint8(dt), Shape: make([]int64, 0, len(shape)+1)}
	for _, n := range shape {
		p.Shape = append(p.Shape, int64(n))
	}
	switch {
	case pairs && dt == tensor.Complex64:
		p.DType, p.Shape = uint8(tensor.Float32), append(p.Shape, 2)
	case pairs && dt == tensor.Complex128:
		p.DType, p.Shape = uint8(tensor.Float64), append(p.Shape, 2)
	}
	f.Tensors = append(f.Tensors, p)
}

// Bounds of what is believed about another rank's fingerprint.
const (
	maxPrintTensors = 1 << 10
	maxPrintDims    = 1 << 10
)

// Words returns the fingerprint as int64 words, as they are sent.
func (f *Fingerprint) Words(l Layout) []int64 {
	words := []int64{int64(f.Op)}
	if l != Torch113 {
		words = append(words, int64(f.Sequence)) //nolint:gosec // a count
	}
	words = append(words, int64(len(f.Tensors)))
	for _, t := range f.Tensors {
		words = append(words, int64(t.DType))
	}
	for _, t := range f.Tensors {
		words = append(words, int64(t.Device))
	}
	for _, t := range f.Tensors {
		words = append(words, int64(len(t.Shape)))
		words = append(words, t.Shape...)
	}
	return words
}

// parseFingerprint reads what another rank sent.
func parseFingerprint(l Layout, words []int64) (Fingerprint, error) {
	var f Fingerprint
	bad := func(what string) (Fingerprint, error) {
		return Fingerprint{}, cohort.Newf("gloo: fingerprint", cohort.Protocol, "%d words: %s", len(words), what)
	}
	next := func() (int64, bool) {
		if len(words) == 0 {
			return 0, false
		}
		w := words[0]
		words = words[1:]
		return w, true
	}
	op, ok := next()
	if !ok || op < 0 || op > 255 {
		return bad("no operation")
	}
	f.Op = uint8(op)
	if l != Torch113 {
		seq, found := next()
		if !found {
			return bad("no sequence number")
		}
		f.Sequence = uint64(seq) //nolint:gosec // for people
	}
	n, ok := next()
	if !ok || n < 0 || n > maxPrintTensors || int64(len(words)) < 3*n {
		return bad("impossible number of tensors")
	}
	f.Tensors = make([]tensorPrint, n)
	for i := range f.Tensors {
		dt, _ := next()
		f.Tensors[i].DType = uint8(dt) //nolint:gosec // for people
	}
	for i := range f.Tensors {
		device, _ := next()
		f.Tensors[i].Device = uint8(device) //nolint:gosec // for people
	}
	for i := range f.Tensors {
		dims, ok := next()
		if !ok || dims < 0 || dims > maxPrintDims || dims > int64(len(words)) {
			return bad("impossible number of dimensions")
		}
		f.Tensors[i].Shape = slices.Clone(words[:dims])
		words = words[dims:]
	}
	if len(words) != 0 {
		return bad("more than the tensors need")
	}
	return f, nil
}

// torchOps are the names of PyTorch's operations by number.
var torchOps = [...]string{
	"broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_coalesced",
	"gather", "scatter", "reduce_scatter", "all_to_all_single", "all_to_all", "send", "recv", "recv_any", "barrier",
	"reduce_scatter_tensor",
}

// String reports what the rank runs, for people.
func (f *Fingerprint) String() string {
	var b strings.Builder
	if int(f.Op) < len(torchOps) {
		b.WriteString(torchOps[f.Op])
	} else {
		fmt.Fprintf(&b, "operation %d", f.Op)
	}
	b.WriteByte('(')
	for i, t := range f.Tensors {
		if i > 0 {
			b.WriteString(", ")
		}
		if dt := tensor.DType(t.DType); dt.Valid() {
			b.WriteString(dt.String())
		} else {
			fmt.Fprintf(&b, "type %d", t.DType)
		}
		fmt.Fprintf(&b, "%v", t.Shape)
		if t.Device != 0 {
			fmt.Fprintf(&b, " on device type %d", t.Device)
		}
	}
	b.WriteByte(')')
	if f.Sequence != 0 {
		fmt.Fprintf(&b, " as operation %d", f.Sequence)
	}
	return b.String()
}

func putWords(words []int64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(w)) //nolint:gosec // the bits
	}
	return b
}

func getWords(b []byte) []int64 {
	words := make([]int64, len(b)/8)
	for i := range words {
		words[i] = int64(binary.LittleEndian.Uint64(b[8*i:])) //nolint:gosec // the bits
	}
	return words
}

// Wrapper is the helper group that PyTorch puts beside a group with TORCH_DISTRIBUTED_DEBUG=DETAIL: before each collective
// all ranks meet there in a monitored barrier and compare fingerprints. It corresponds to c10d's ProcessGroupWrapper.
//
// One check runs at a time.
type Wrapper struct {
	layout Layout
	mesh   transport.Mesh
	engine *Engine
	tag    uint32
}

// NewWrapper returns a wrapper over the helper group's mesh.
func NewWrapper(l Layout, mesh transport.Mesh) *Wrapper {
	return &Wrapper{layout: l, mesh: mesh, engine: NewEngine(mesh)}
}

// Check sends the other ranks what this one is going to run and returns when all have sent the same. Ranks that differ get
// an error with the code [cohort.Mismatch], all of them, and the wrapper stays usable; any other error is the end of it.
// limit bounds each wait.
func (w *Wrapper) Check(ctx context.Context, own *Fingerprint, limit time.Duration) error {
	if err := w.meet(ctx, own, limit); err != nil {
		return err
	}
	words := own.Words(w.layout)
	// First the length, so that the second exchange has room for all words.
	length := []int64{int64(len(words))}
	lengths, err := w.gather(ctx, length, limit)
	if err != nil {
		return err
	}
	for r, theirs := range lengths {
		if theirs[0] != length[0] {
			return w.differ(own, r, "something with other numbers of tensors or dimensions ("+strconv.FormatInt(theirs[0], 10)+
				" words of fingerprint where this rank has "+strconv.Itoa(len(words))+")")
		}
	}
	all, err := w.gather(ctx, words, limit)
	if err != nil {
		return err
	}
	for r, theirs := range all {
		if slices.Equal(theirs, words) {
			continue
		}
		other, err := parseFingerprint(w.layout, theirs)
		if err != nil {
			return w.differ(own, r, "something whose fingerprint cannot be read: "+err.Error())
		}
		return w.differ(own, r, other.String())
	}
	return nil
}

// meet is the monitored barrier before the comparison.
func (w *Wrapper) meet(ctx context.Context, own *Fingerprint, limit time.Duration) error {
	tag := w.tag
	w.tag += 2
	barrier := monitoredbarrier.Barrier{Mesh: w.mesh, Report: uint64(tag), Release: uint64(tag + 1), Limit: limit, All: true}
	if err := barrier.Run(ctx); err != nil {
		e := cohort.Wrap("gloo: check before "+own.String(), cohort.PeerLost, err)
		w.mesh.Fail(e)
		return e
	}
	return nil
}

// gather collects the words of all ranks; all have the same number.
func (w *Wrapper) gather(ctx context.Context, words []int64, limit time.Duration) ([][]int64, error) {
	tag := w.tag
	w.tag++
	in := putWords(words)
	out := make([]byte, len(in)*w.mesh.Size())
	err := w.engine.Run(ctx, &collective.Request{
		Kind: collective.AllGather, Tag: tag, DType: tensor.Int64, In: in, Out: out,
		Timeout: limit,
	})
	if err != nil {
		return nil, err
	}
	lists := make([][]int64, w.mesh.Size())
	for r := range lists {
		lists[r] = getWords(out[r*len(in) : (r+1)*len(in)])
	}
	return lists, nil
}

func (w *Wrapper) differ(own *Fingerprint, rank int, theirs string) error {
	return &cohort.Error{
		Op: "gloo: check before a collective", Code: cohort.Mismatch, Rank: cohort.Rank(rank),
		Detail: "rank " + strconv.Itoa(w.mesh.Rank()) + " runs " + own.String() + ", but rank " + strconv.Itoa(rank) + " runs " + theirs +
			"; all ranks must call the same operations in the same order",
	}
}

// Fail ends a check that runs, and the wrapper.
func (w *Wrapper) Fail(err error) { w.mesh.Fail(err) }

// Close leaves the helper group.
func (w *Wrapper) Close() error { return w.mesh.Close() }

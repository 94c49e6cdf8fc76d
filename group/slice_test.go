// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/tensor"
)

// TestSlices: what a slice is sent with or reduced into is the slice itself, whether a collective or a message.
func TestSlices(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			const size, root = 3, 1
			groups := newWorld(t, size, WithTransport(transport))
			ctx := context.Background()
			must(t, each(size, func(r int) error {
				data := []float32{float32(r), 10}
				if err := ReduceSlice(ctx, groups[r], data, Sum, root); err != nil {
					return err
				}
				if r == root && !slices.Equal(data, []float32{3, 30}) {
					t.Errorf("rank %d has %v after reduce", r, data)
				}

				got := make([]int64, 2)
				next, before := cohort.Rank((r+1)%size), cohort.Rank((r+size-1)%size)
				sent := groups[r].Send(ctx, from(int64(r), int64(r*r)), next, 7)
				if err := RecvSlice(ctx, groups[r], got, before, 7); err != nil {
					return err
				}
				if want := []int64{int64(before), int64(before * before)}; !slices.Equal(got, want) {
					t.Errorf("rank %d received %v, want %v", r, got, want)
				}
				return sent.Wait(ctx)
			}))
		})
	}
}

// TestFlightRecorderSize: the recorder remembers as many operations as asked for, the latest.
func TestFlightRecorderSize(t *testing.T) {
	t.Parallel()
	const kept, done = 3, 8
	groups := newWorld(t, 2, WithTransport(TCP), WithFlightRecorder(kept))
	ctx := context.Background()
	must(t, each(2, func(r int) error {
		for range done {
			if err := groups[r].Barrier(ctx).Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}))
	data, err := groups[0].Trace()
	must(t, err)
	dump, err := flightrec.Parse(data)
	must(t, err)
	entries := dump.Groups[0].Entries
	if len(entries) != kept || entries[kept-1].Seq != done-1 {
		t.Errorf("%d entries, want %d: %+v", len(entries), kept, entries)
	}
}

// fullArena is an engine whose segment has no room.
type fullArena struct{ collective.Engine }

func (fullArena) Alloc(n int) (*tensor.Storage, error) {
	return nil, cohort.Newf("shm: alloc", cohort.Exhausted, "%d bytes", n)
}

// TestNewTensorOfAFullSegment: a tensor for which the segment has no room is on the heap.
func TestNewTensorOfAFullSegment(t *testing.T) {
	t.Parallel()
	x, err := (&Group{engine: fullArena{}}).NewTensor(tensor.Float32, 2, 3)
	if err != nil || x.Numel() != 6 || x.Storage().Origin() == "shared segment" {
		t.Errorf("%v, %v", x, err)
	}
	if _, err = (&Group{engine: fullArena{}}).NewTensor(tensor.Float32, -1); cohort.CodeOf(err) != cohort.InvalidArgument {
		t.Errorf("a negative dimension: %v", err)
	}
}

// TestNilGroup: no method of a nil group panics, and every one that can return an error returns one that says what is wrong. A program gets
// such a group where it ignores the error of New.
func TestNilGroup(t *testing.T) {
	t.Parallel()
	var g *Group
	for m := range reflect.TypeFor[*Group]().Methods() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			args := []reflect.Value{reflect.ValueOf(g)}
			for at := 1; at < m.Type.NumIn(); at++ {
				if m.Type.IsVariadic() && at == m.Type.NumIn()-1 {
					break
				}
				if in := m.Type.In(at); in == reflect.TypeFor[context.Context]() {
					args = append(args, reflect.ValueOf(t.Context()))
				} else {
					args = append(args, reflect.Zero(in))
				}
			}
			for _, out := range m.Func.Call(args) {
				switch out := out.Interface().(type) {
				case *Work:
					isNilGroup(t, out.Wait(t.Context()))
				case []*Work:
					for _, w := range out {
						isNilGroup(t, w.Wait(t.Context()))
					}
				default:
				}
			}
			if last := m.Type.NumOut() - 1; last >= 0 && m.Type.Out(last) == reflect.TypeFor[error]() {
				err, _ := reflect.TypeAssert[error](m.Func.Call(args)[last])
				isNilGroup(t, err)
			}
		})
	}
}

func isNilGroup(t *testing.T, err error) {
	t.Helper()
	if e := asError(err); e == nil || e.Code != cohort.InvalidArgument {
		t.Errorf("%v", err)
	}
}

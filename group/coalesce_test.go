// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// same reports as an error that x does not hold want.
func same[T tensor.Element](what string, x *tensor.Tensor, want ...T) error {
	got, err := tensor.Copy[T](x)
	if err == nil && !slices.Equal(got, want) {
		err = cohort.Newf(what, cohort.Internal, "%v, want %v", got, want)
	}
	return err
}

// TestCoalesced runs every operation on several tensors, some of which are not contiguous, on every transport.
func TestCoalesced(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			groups := newWorld(t, 3, WithTransport(transport))
			must(t, each(3, func(r int) error {
				g, f := groups[r], int64(r)
				a, b := from(f, f+10), from(f+100)
				outs := make([][]*tensor.Tensor, 3)
				for i := range outs {
					grid := tensor.Must(tensor.New(tensor.Int64, 2, 2))
					outs[i] = []*tensor.Tensor{tensor.Must(grid.Select(1, 1)), tensor.Must(tensor.New(tensor.Int64, 1))}
				}
				if err := g.AllGatherCoalesced(ctx, outs, []*tensor.Tensor{a, b}).Wait(ctx); err != nil {
					return err
				}
				for i := range outs {
					if err := errors.Join(same("gathered", outs[i][0], int64(i), int64(i)+10),
						same("gathered", outs[i][1], int64(i)+100)); err != nil {
						return err
					}
				}
				wide, narrow := tensor.Must(tensor.New(tensor.Int64, 6)), tensor.Must(tensor.New(tensor.Int64, 3))
				err := g.Coalesce(ctx, func(c *Coalescer) {
					c.AllGatherInto(wide, a)
					c.AllGatherInto(narrow, b)
				}).Wait(ctx)
				if err = errors.Join(err, same[int64]("wide", wide, 0, 10, 1, 11, 2, 12),
					same[int64]("narrow", narrow, 100, 101, 102)); err != nil {
					return err
				}
				x, y := from[int64](1, 2, 3, 4, 5, 6), from[int64](f, f, f)
				xo, yo := tensor.Must(tensor.New(tensor.Int64, 2)), tensor.Must(tensor.New(tensor.Int64, 1))
				err = g.Coalesce(ctx, func(c *Coalescer) {
					c.ReduceScatterInto(xo, x, Sum)
					c.ReduceScatterInto(yo, y, Sum)
				}).Wait(ctx)
				if err = errors.Join(err, same("x", xo, 6*f+3, 6*f+6), same[int64]("y", yo, 3)); err != nil {
					return err
				}
				p, q := from(f), from(f*10, f*10)
				err = g.Coalesce(ctx, func(c *Coalescer) {
					c.AllReduce(p, Max)
					c.AllReduce(q, Max)
				}).Wait(ctx)
				if err = errors.Join(err, same[int64]("p", p, 2), same[int64]("q", q, 20, 20)); err != nil {
					return err
				}
				s, u := from(f), from(f, f)
				err = g.Coalesce(ctx, func(c *Coalescer) {
					c.Broadcast(s, 1)
					c.Broadcast(u, 1)
				}).Wait(ctx)
				return errors.Join(err, same[int64]("s", s, 1), same[int64]("u", u, 1, 1))
			}))
			if got, want := groups[0].Seq(), uint64(5); got != want {
				t.Errorf("%d operations for %d calls", got, want)
			}
		})
	}
}

// TestCoalescerTakesOneKind: what a scope cannot combine is refused before anything is sent.
func TestCoalescerTakesOneKind(t *testing.T) {
	ctx := ctxOf(t)
	groups := newWorld(t, 2)
	g, x := groups[0], from[int64](1, 2)
	for name, fill := range map[string]func(c *Coalescer){
		"no operations":   func(*Coalescer) {},
		"one kind":        func(c *Coalescer) { c.AllReduce(x, Sum); c.Broadcast(x, 0) },
		"the operator":    func(c *Coalescer) { c.AllReduce(x, Sum); c.AllReduce(x, Max) },
		"the root":        func(c *Coalescer) { c.Broadcast(x, 0); c.Broadcast(x, 1) },
		"tensor 0 is":     func(c *Coalescer) { c.AllReduce(x, Sum); c.AllReduce(from[float32](1), Sum) },
		"pair 0":          func(c *Coalescer) { c.AllGatherInto(x, x) },
		"no tensor":       func(c *Coalescer) { c.ReduceScatterInto(x, nil, Sum) },
		"is not defined":  func(c *Coalescer) { c.ReduceScatterInto(from[float32](1), from[float32](1, 2), Xor) },
		"ranks 0 to 1":    func(c *Coalescer) { c.Broadcast(x, 5) },
		"want as many":    nil,
		"lists of output": nil,
	} {
		var w *Work
		switch name {
		case "want as many":
			w = g.AllGatherIntoCoalesced(ctx, nil, []*tensor.Tensor{x})
		case "lists of output":
			w = g.AllGatherCoalesced(ctx, nil, []*tensor.Tensor{x})
		default:
			w = g.Coalesce(ctx, fill)
		}
		if err := w.Wait(ctx); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, each(2, func(r int) error { return groups[r].Barrier(ctx).Wait(ctx) }))
}

// TestBroadcastCoalesced cuts tensors of several types into buckets.
func TestBroadcastCoalesced(t *testing.T) {
	ctx := ctxOf(t)
	for _, transport := range transports {
		groups := newWorld(t, 3, WithTransport(transport))
		must(t, each(3, func(r int) error {
			f := int64(r)
			a, b, c, d := from(f, f), from(float32(r)), from(f), from(f, f, f)
			if err := groups[r].BroadcastCoalesced(ctx, []*tensor.Tensor{a, b, c, d}, 24, 2); err != nil {
				return err
			}
			return errors.Join(same[int64]("a", a, 2, 2), same[float32]("b", b, 2), same[int64]("c", c, 2), same[int64]("d", d, 2, 2, 2))
		}))
		if got := groups[0].Seq(); got != 3 { // a with c, b, d
			t.Errorf("%d broadcasts", got)
		}
	}
}

// TestObjectsBetweenTwoRanks sends lists of objects, to a rank that knows the sender and to one that does not.
func TestObjectsBetweenTwoRanks(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			groups := newWorld(t, 3, WithTransport(transport))
			must(t, each(3, func(r int) error {
				g := groups[r]
				if r != 0 {
					return g.SendObjects(ctx, [][]byte{[]byte("from"), nil, {byte('0' + r)}}, 0)
				}
				for _, from := range []cohort.Rank{2, cohort.NoRank} {
					list := make([][]byte, 3)
					source, err := g.RecvObjects(ctx, list, from)
					if err != nil {
						return err
					}
					if want := string([]byte{'f', 'r', 'o', 'm', '0' + byte(source)}); string(slices.Concat(list...)) != want ||
						from == 2 && source != 2 {
						return cohort.Newf("received", cohort.Internal, "%q from %d", list, source)
					}
				}
				return nil
			}))
			for _, err := range []error{
				groups[0].SendObjects(ctx, nil, 1), groups[0].SendObjects(ctx, [][]byte{{1}}, 0),
				recvError(groups[0].RecvObjects(ctx, nil, 1)),
			} {
				if !errors.Is(err, cohort.InvalidArgument) {
					t.Error(err)
				}
			}
		})
	}
}

func recvError(_ cohort.Rank, err error) error { return err }

// TestObjectsThatAreTooLarge: no memory is taken for what a rank announces and cannot have.
func TestObjectsThatAreTooLarge(t *testing.T) {
	ctx := ctxOf(t)
	groups := newWorld(t, 2)
	for _, size := range []int64{-1, MaxObject + 1} {
		must(t, each(2, func(r int) error {
			if r == 1 {
				return groups[1].Send(ctx, from[int64](size), 0, 0).Wait(ctx)
			}
			_, err := groups[0].RecvObjects(ctx, make([][]byte, 1), 1)
			if !errors.Is(err, cohort.TooLarge) || cohort.CodeOf(err) != cohort.TooLarge {
				return cohort.Newf("received", cohort.Internal, "%v", err)
			}
			return nil
		}))
	}
}

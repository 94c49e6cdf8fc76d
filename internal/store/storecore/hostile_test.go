// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/invariants"
)

// hostileLimits leave so little that a few hundred attackers could take all of it.
var hostileLimits = Limits{Limits: wire.DefaultLimits, Memory: 32 << 20, Output: 16 << 20, Waits: 1 << 14}

// attackersOf is how many attackers there are instead of n: fewer in the race run, whose clocks are slow and which has nothing
// to find here.
func attackersOf(n int) int {
	if invariants.Enabled {
		return max(n/3, 1)
	}
	return n
}

// honest is a PyTorch client that sends in segments, reads what it gets, and has seconds, not minutes.
type honest struct {
	*bench

	t    *testing.T
	conn *Conn
	name string
}

func newHonest(t *testing.T, b *bench, name string) *honest {
	t.Helper()
	return &honest{bench: b, t: t, conn: b.dial(wire.V), name: name}
}

// step lets time pass and gives everybody their turn. Only the honest client reads.
func (h *honest) step() {
	h.m.Tick(h.m.clock.now + int64(100*time.Millisecond))
	h.m.Resume()
	h.m.Admit()
	h.m.Dirty()
	if p := pending(h.conn); len(p) > 0 {
		h.got[h.conn] = append(h.got[h.conn], p...)
		h.m.Sent(h.conn, len(p))
	}
	if held := h.m.memory(); held > h.m.config.Limits.Memory {
		h.t.Fatalf("%s: %d bytes are held, the limit is %d", h.name, held, h.m.config.Limits.Memory)
	}
}

// readSize is how much a driver reads at a time.
func (b *bench) readSize(c *Conn) int {
	if n := b.m.ReadSize(c); n > 0 {
		return n
	}
	return 64 << 10
}

// ask sends a request as TCP would, and waits for an answer of n bytes.
func (h *honest) ask(what string, request []byte, n int) {
	h.t.Helper()
	const patience = 60 * 10 // a minute
	for steps := 0; len(request) > 0 || len(h.got[h.conn]) < n; steps++ {
		if h.conn.Cut() != nil {
			h.t.Fatalf("%s: %s: an honest client was cut: %v", h.name, what, h.conn.Cut())
		}
		if steps > patience {
			h.t.Fatalf(
				"%s: %s: an honest client waits for more than a minute with %d bytes to send and %d of %d bytes of the answer; %d "+
					"queued, %d of %d and %d of %d bytes",
				h.name, what, len(request), len(h.got[h.conn]), n, h.m.admission.replies.Len(), h.m.admission.out,
				h.m.admission.shares.out, h.m.admission.in, h.m.admission.shares.in)
		}
		if len(request) > 0 && !h.conn.Paused() {
			piece := min(len(request), h.readSize(h.conn))
			h.m.Receive(h.conn, request[:piece])
			request = request[piece:]
		}
		h.step()
	}
	delete(h.got, h.conn)
}

// honestSize is the size of an honest client's value: its reply is one of the large ones, which wait first.
const honestSize = highWater + 64<<10

var honestSet = wire.AppendSet(nil, wire.V, "/honest", make([]byte, honestSize))

// use does what a rank does with a store.
func (h *honest) use() {
	h.t.Helper()
	h.ask("ping", wire.AppendPing(nil, wire.V, 7), 4)
	h.ask("large set", honestSet, 0)
	h.ask("add", wire.AppendAdd(nil, wire.V, "/count", 1), 8)
	h.ask("large get", wire.AppendKey(nil, wire.V, wire.Get, "/honest"), honestSize+8)
	h.ask("wait", wire.AppendKeys(nil, wire.V, wire.Wait, "/honest"), 1)
	h.ask("barrier", wire.AppendBarrier(nil, wire.V, "/honest-barrier", 1), 1)
	h.ask("push and pop", wire.AppendKey(wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/honest-queue", []byte("x")), wire.V,
		wire.QueuePop, "/honest-queue"), 17)
	h.ask("delete", wire.AppendKey(nil, wire.V, wire.DeleteKey, "/honest-barrier"), 8)
	// And another that waits for what comes later.
	other := newHonest(h.t, h.bench, h.name+", another")
	h.m.Receive(other.conn, wire.AppendKeys(nil, wire.V, wire.Wait, "/later"))
	h.ask("set", wire.AppendSet(nil, wire.V, "/later", nil), 0)
	other.ask("wait for what comes", nil, 1)
	h.ask("delete", wire.AppendKey(nil, wire.V, wire.DeleteKey, "/later"), 8)
	h.m.Close(other.conn)
}

// hostileRequests are requests of all kinds. Each takes the number of the one who sends it.
func hostileRequests() map[string]func(d wire.Dialect, b []byte, i int) []byte {
	few := []string{"/value", "/value", "/value", "/value"}
	big := make([]byte, 250<<10)
	return map[string]func(d wire.Dialect, b []byte, i int) []byte{
		"set": func(d wire.Dialect, b []byte, i int) []byte { return wire.AppendSet(b, d, fmt.Sprint("/a", i), nil) },
		"compare_set": func(d wire.Dialect, b []byte, _ int) []byte {
			return wire.AppendCompareSet(b, d, "/value", []byte("x"), nil)
		},
		"compare_set of a missing key": func(d wire.Dialect, b []byte, _ int) []byte {
			return wire.AppendCompareSet(b, d, "/none", big, nil)
		},
		"get":   func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKey(b, d, wire.Get, "/value") },
		"add":   func(d wire.Dialect, b []byte, i int) []byte { return wire.AppendAdd(b, d, fmt.Sprint("/n", i%8), 1) },
		"check": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKeys(b, d, wire.Check, few...) },
		"wait": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendKeys(b, d, wire.Wait, fmt.Sprint("/w", i%8))
		},
		"num_keys":  func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendPlain(b, d, wire.NumKeys) },
		"watch_key": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKey(b, d, wire.WatchKey, "/watched") },
		"watch_key of many": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendKey(b, d, wire.WatchKey, fmt.Sprint("/x", i))
		},
		"delete_key": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendKey(b, d, wire.DeleteKey, fmt.Sprint("/a", i))
		},
		"append": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendKeyValue(b, d, wire.Append, fmt.Sprint("/p", i%8), []byte("x"))
		},
		"multi_get": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKeys(b, d, wire.MultiGet, few...) },
		"multi_set": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendMultiSet(b, d, []string{"/m1", fmt.Sprint("/m", i%8)}, [][]byte{nil, nil})
		},
		"cancel_wait": func(d wire.Dialect, b []byte, i int) []byte {
			if d == wire.Native {
				return wire.AppendCancel(b, uint32(i))
			}
			return wire.AppendPlain(b, d, wire.CancelWait)
		},
		"ping": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendPing(b, d, 1) },
		"queue_push": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendKeyValue(b, d, wire.QueuePush, fmt.Sprint("/q", i%8), []byte("x"))
		},
		"queue_pop": func(d wire.Dialect, b []byte, _ int) []byte {
			if d == wire.Native {
				return wire.AppendQueuePop(b, "/items", true)
			}
			return wire.AppendKey(b, d, wire.QueuePop, "/items")
		},
		"queue_len": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKey(b, d, wire.QueueLen, "/items") },
		"list_keys": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendPlain(b, d, wire.ListKeys) },
		"barrier": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendBarrier(b, d, fmt.Sprint("/b", i%8), 1<<40)
		},
		"stats":          func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendPlain(b, d, wire.Stats) },
		"hello":          func(_ wire.Dialect, b []byte, _ int) []byte { return wire.AppendHello(b, nil) },
		"hello, another": func(_ wire.Dialect, b []byte, _ int) []byte { return wire.AppendHello(b, []byte("x")) },
		"clear, another": func(_ wire.Dialect, b []byte, _ int) []byte { return wire.AppendClear(b, []byte("x")) },
		"get that waits": func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKey(b, d, wire.Get, "/comes") },
		"waits of many":  func(d wire.Dialect, b []byte, _ int) []byte { return wire.AppendKeys(b, d, wire.Wait, manyKeys...) },
		"multi_get waits": func(d wire.Dialect, b []byte, _ int) []byte {
			return wire.AppendKeys(b, d, wire.MultiGet, "/comes", "/comes", "/value")
		},
		"claim": func(d wire.Dialect, b []byte, i int) []byte {
			return wire.AppendCompareSet(b, d, wire.ClaimPrefix+strconv.Itoa(i), nil, big[:1000])
		},
	}
}

var manyKeys = func() (keys []string) {
	for i := range 500 {
		keys = append(keys, fmt.Sprint("/missing", i))
	}
	return keys
}()

// spoken reports whether a dialect has the request.
func spoken(d wire.Dialect, name string) bool {
	switch name {
	case "watch_key", "watch_key of many":
		return d == wire.Legacy
	case "ping", "queue_push", "queue_pop", "queue_len", "list_keys", "barrier":
		return d != wire.Legacy
	case "stats", "hello", "hello, another", "clear, another", "get that waits", "multi_get waits", "claim":
		return d == wire.Native
	}
	return true
}

// TestSilentReadersHarmNoOther has hundreds of clients ask for as much as they can of one kind, in each dialect, and never
// read: the memory limit holds at every moment, and an honest PyTorch client is served, and is not cut.
func TestSilentReadersHarmNoOther(t *testing.T) {
	for _, d := range []wire.Dialect{wire.Legacy, wire.V, wire.Native} {
		for name, write := range hostileRequests() {
			if !spoken(d, name) {
				continue
			}
			t.Run(d.String()+" "+name, func(t *testing.T) {
				b := newBench(hostileLimits)
				b.m.config.Stats = func() []byte { return make([]byte, 200<<10) }
				h := newHonest(t, b, name)
				h.ask("set", wire.AppendSet(nil, wire.V, "/value", make([]byte, 250<<10)), 0)
				for range 40 {
					h.ask("push", wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/items", make([]byte, 100<<10)), 0)
				}
				attackers := make([]*Conn, attackersOf(120))
				for i := range attackers {
					attackers[i] = b.m.Open(fmt.Sprint("10.0.0.9:", i), nil)
					switch d {
					case wire.V:
						b.m.Receive(attackers[i], wire.AppendValidate(nil))
					case wire.Native:
						b.m.Receive(attackers[i], wire.AppendUpgrade(wire.AppendValidate(nil)))
					default:
					}
				}
				id := 0
				attack := func() {
					for _, c := range attackers {
						var flood []byte
						for len(flood) < 8<<10 {
							id++
							if d == wire.Native {
								flood = append(flood, frame(uint32(id), func(f []byte) []byte { return write(d, f, id) })...)
							} else {
								flood = write(d, flood, id)
							}
						}
						for len(flood) > 0 && !c.Paused() { // as a driver reads
							n := min(len(flood), b.readSize(c))
							b.m.Receive(c, flood[:n])
							flood = flood[n:]
						}
						if held := b.m.memory(); held > b.m.config.Limits.Memory {
							t.Fatalf("%d bytes are held, the limit is %d", held, b.m.config.Limits.Memory)
						}
					}
				}
				for range min(2, attackersOf(2)) {
					attack()
					// What makes deferred answers: a key that they wait for, items for their pops, changes that they watch.
					h.ask("set what they wait for", wire.AppendSet(nil, wire.V, "/comes", make([]byte, 250<<10)), 0)
					for range 4 {
						h.ask("set what they watch", wire.AppendSet(nil, wire.V, "/watched", make([]byte, 250<<10)), 0)
						h.ask("push", wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/items", make([]byte, 100<<10)), 0)
					}
					h.use()
					h.ask("delete", wire.AppendKey(nil, wire.V, wire.DeleteKey, "/comes"), 8)
				}
				for _, c := range attackers {
					b.m.Close(c)
				}
				h.use()
			})
		}
	}
}

// TestUnfinishedRequestsHarmNoOther has hundreds of clients send the beginnings of requests of all kinds, small and large, and
// go on byte by byte or not at all.
func TestUnfinishedRequestsHarmNoOther(t *testing.T) {
	big := make([]byte, 400<<10)
	keys := make([]string, 2000)
	for i := range keys {
		keys[i] = fmt.Sprintf("/%0200d", i)
	}
	values := make([][]byte, len(keys))
	for name, request := range map[string][]byte{
		"set":         wire.AppendSet(nil, wire.V, "/half", big),
		"compare_set": wire.AppendCompareSet(nil, wire.V, "/half", big, big),
		"append":      wire.AppendKeyValue(nil, wire.V, wire.Append, "/half", big),
		"queue_push":  wire.AppendKeyValue(nil, wire.V, wire.QueuePush, "/half", big),
		"wait":        wire.AppendKeys(nil, wire.V, wire.Wait, keys...),
		"check":       wire.AppendKeys(nil, wire.V, wire.Check, keys...),
		"multi_get":   wire.AppendKeys(nil, wire.V, wire.MultiGet, keys...),
		"multi_set":   wire.AppendMultiSet(nil, wire.V, keys, values),
		"native":      frame(1, func(f []byte) []byte { return wire.AppendSet(f, wire.Native, "/half", big) }),
	} {
		for _, part := range []int{2, 1 << 10, 63 << 10, 65 << 10, 390 << 10} {
			for _, dribble := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d %v", name, part, dribble), func(t *testing.T) {
					b := newBench(hostileLimits)
					h := newHonest(t, b, name)
					attackers := make([]*Conn, attackersOf(200))
					for i := range attackers {
						attackers[i] = b.m.Open("bad", nil)
						hello := wire.AppendValidate(nil)
						if name == "native" {
							hello = wire.AppendUpgrade(hello)
						}
						b.m.Receive(attackers[i], hello)
					}
					sent := map[*Conn]int{}
					push := func(upTo int) {
						for range 8 {
							for _, c := range attackers {
								if n := min(upTo-sent[c], b.readSize(c)); n > 0 && !c.Paused() {
									b.m.Receive(c, request[sent[c]:sent[c]+n])
									sent[c] += n
								}
								if held := b.m.memory(); held > b.m.config.Limits.Memory {
									t.Fatalf("%d bytes are held", held)
								}
							}
						}
					}
					push(part)
					before := b.m.clock.now
					for range 3 {
						h.use()
						push(part)
						for _, c := range attackers {
							if dribble && !c.Paused() && sent[c] < len(request)-1 {
								b.m.Receive(c, request[sent[c]:sent[c]+1])
								sent[c]++
							}
						}
					}
					if took := time.Duration(b.m.clock.now - before); took > 30*time.Second {
						t.Errorf("it took %v", took)
					}
				})
			}
		}
	}
}

// Without need no client is hurried: a request may take as long as it likes while there is room.
func TestSlowClientsAreServedWhileThereIsRoom(t *testing.T) {
	b := newBench(hostileLimits)
	slow, reader := b.dial(wire.V), b.dial(wire.V)
	set := wire.AppendSet(nil, wire.V, "/slow", make([]byte, 1000))
	for i := range set {
		b.m.Tick(b.m.clock.now + int64(time.Minute))
		b.m.Expire(1)
		b.send(slow, set[i:i+1])
		b.turn()
	}
	b.m.Receive(reader, wire.AppendKey(nil, wire.V, wire.Get, "/slow"))
	b.m.Tick(b.m.clock.now + int64(time.Hour))
	b.turn()
	if reader.Owed() != 1008 || slow.Cut() != nil || reader.Cut() != nil {
		t.Errorf("%d bytes, cut %v and %v", reader.Owed(), slow.Cut(), reader.Cut())
	}
	// But a request that no client goes on with is dropped in the end.
	b.m.Receive(slow, set[:500])
	for range 20 {
		if b.m.Expire(20); slow.Cut() != nil || !b.m.Unfinished() {
			t.Fatalf("cut too early: %v", slow.Cut())
		}
	}
	if b.m.Expire(20); slow.Cut() == nil {
		t.Error("half a request is kept for ever")
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/store/storewire/storecapture"
)

var dialectOf = map[string]wire.Dialect{"1.13": wire.Legacy, "2.6": wire.V, "2.14": wire.V}

// encode writes a parsed request again.
func encode(d wire.Dialect, r *wire.Request) []byte {
	var b []byte
	strs := func() (keys []string) {
		for l := r.List; !l.Empty(); {
			keys = append(keys, string(l.Next()))
		}
		return keys
	}
	switch r.Op {
	case wire.Validate:
		return wire.AppendValidate(b)
	case wire.Upgrade:
		return wire.AppendUint32(append(b, byte(wire.Upgrade)), r.Nonce)
	case wire.Ping:
		return wire.AppendPing(b, d, r.Nonce)
	case wire.Set, wire.Append, wire.QueuePush:
		return wire.AppendKeyValue(b, d, r.Op, string(r.Key), r.Value)
	case wire.CompareSet:
		return wire.AppendCompareSet(b, d, string(r.Key), r.Expected, r.Value)
	case wire.Add:
		return wire.AppendAdd(b, d, string(r.Key), r.Num)
	case wire.Barrier:
		return wire.AppendBarrier(b, d, string(r.Key), r.Num)
	case wire.Check, wire.Wait, wire.MultiGet, wire.Peek, wire.Await:
		return wire.AppendKeys(b, d, r.Op, strs()...)
	case wire.Arrive:
		return wire.AppendArrive(b, string(r.Key), r.Num, r.Nonce)
	case wire.Session: // the lengths of identity and token are checked later
		b = wire.AppendBytes(wire.AppendBytes(append(b, byte(r.Op)), r.Key), r.Expected)
		return binary.LittleEndian.AppendUint64(wire.AppendInt(b, r.Num), r.Ack)
	case wire.Leave:
		return wire.AppendLeave(b, r.Sub)
	case wire.Acked:
		return wire.AppendAcked(b, uint64(r.Num))
	case wire.Backup: // any number can be there
		return wire.AppendUint32(append(b, byte(r.Op)), r.Nonce)
	case wire.MultiSet:
		var keys []string
		var values [][]byte
		for i, s := range strs() {
			if i%2 == 0 {
				keys = append(keys, s)
			} else {
				values = append(values, []byte(s))
			}
		}
		return wire.AppendMultiSet(b, d, keys, values)
	case wire.QueuePop:
		if d == wire.Native {
			return wire.AppendQueuePop(b, string(r.Key), r.Wait)
		}
		return wire.AppendKey(b, d, r.Op, string(r.Key))
	case wire.CancelWait:
		if d == wire.Native {
			return wire.AppendCancel(b, r.Nonce)
		}
		return wire.AppendPlain(b, d, r.Op)
	case wire.NumKeys, wire.ListKeys, wire.Stats:
		return wire.AppendPlain(b, d, r.Op)
	case wire.Hello:
		return wire.AppendHello(b, r.Expected)
	case wire.Clear:
		return wire.AppendClear(b, r.Expected)
	default:
		return wire.AppendKey(b, d, r.Op, string(r.Key))
	}
}

// TestCaptures reads every request that real PyTorch clients sent, in one piece and byte by byte, and writes it again.
func TestCaptures(t *testing.T) {
	names := strings.NewReplacer("getnumkeys", "num_keys")
	for _, version := range storecapture.Versions {
		blocks, err := storecapture.Load(version)
		if err != nil {
			t.Fatal(err)
		}
		d, n := dialectOf[version], 0
		for _, b := range blocks {
			for _, item := range b.Items {
				if !item.Request {
					continue
				}
				n++
				var r wire.Request
				var p wire.Progress
				if got, err := wire.ParseRequest(d, item.Data, &wire.DefaultLimits, &p, &r); got != len(item.Data) || err != nil {
					t.Fatalf("[%s] %s: %d, %v", b.Title, item.Note, got, err)
				}
				if word, _, _ := strings.Cut(names.Replace(strings.ToLower(item.Note)), " "); word != r.Op.String() {
					t.Errorf("[%s] read as %s, the capture says %s", b.Title, r.Op, word)
				}
				if again := encode(d, &r); !bytes.Equal(again, item.Data) {
					t.Errorf("[%s] written as % x, PyTorch wrote % x", b.Title, again, item.Data)
				}
				for i := 1; i < len(item.Data); i++ {
					if got, err := wire.ParseRequest(d, item.Data[:i], &wire.DefaultLimits, &p, &r); got != 0 || err != nil {
						t.Fatalf("[%s] the first %d bytes: %d, %v", b.Title, i, got, err)
					}
				}
				if got, err := wire.ParseRequest(d, item.Data, &wire.DefaultLimits, &p, &r); got != len(item.Data) || err != nil {
					t.Fatalf("[%s] bytewise: %d, %v", b.Title, got, err)
				}
			}
		}
		if n < 40 {
			t.Errorf("%s: only %d requests", version, n)
		}
	}
}

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		bytes string
		want  wire.Dialect
	}{
		{"", wire.Undetected},
		{"\x00", wire.Undetected},
		{"\x00\xce\xf7\x85", wire.Undetected},
		{"\x00\xce\xf7\x85\x3c", wire.V},
		{"\x00\xce\xf7\x85\x3d", wire.Legacy},
		{"\x00\x03\x00\x00\x00", wire.Legacy},
		{"\x03", wire.Legacy},
		{"\xff", wire.Legacy},
	} {
		if got := wire.Detect([]byte(c.bytes)); got != c.want {
			t.Errorf("%q: %s, want %s", c.bytes, got, c.want)
		}
	}
}

// TestLimits shows that a length over its limit is refused as soon as it is there, long before its bytes are.
func TestLimits(t *testing.T) {
	limits := wire.Limits{Key: 10, Value: 100, Keys: 3, Request: 200}
	absurd := func(prefix string, n uint64) []byte { return binary.LittleEndian.AppendUint64([]byte(prefix), n) }
	long := strings.Repeat("k", 11)
	for _, c := range []struct {
		name string
		b    []byte
		code cohort.Code
	}{
		{"key", absurd("\x01", 1<<63), cohort.TooLarge},
		{"key by one", absurd("\x01", 11), cohort.TooLarge},
		{"whole key", wire.AppendKey(nil, wire.V, wire.Get, long), cohort.TooLarge},
		{"value", absurd("\x01\x01\x00\x00\x00\x00\x00\x00\x00k", 101), cohort.TooLarge},
		{"expected", absurd("\x02\x01\x00\x00\x00\x00\x00\x00\x00k", 1<<40), cohort.TooLarge},
		{"keys", absurd("\x05", 4), cohort.TooLarge},
		{"key in a list", wire.AppendKeys(nil, wire.V, wire.Wait, "a", long), cohort.TooLarge},
		{"pairs", absurd("\x0b", 1<<62), cohort.TooLarge},
		{"request", wire.AppendMultiSet(nil, wire.V, []string{"a", "b", "c"},
			[][]byte{make([]byte, 60), make([]byte, 60), make([]byte, 60)}), cohort.TooLarge},
		{"code", []byte{19}, cohort.Protocol},
		{"magic", []byte{0, 1, 2, 3, 4}, cohort.Protocol},
	} {
		var r wire.Request
		var p wire.Progress
		n, err := wire.ParseRequest(wire.V, c.b, &limits, &p, &r)
		if n != 0 || !errors.Is(err, c.code) {
			t.Errorf("%s: %d, %v, want %s", c.name, n, err, c.code)
		}
	}
	var r wire.Request
	var p wire.Progress
	if n, err := wire.ParseRequest(wire.V, wire.AppendKey(nil, wire.V, wire.Get, long[1:]), &limits, &p, &r); n != 19 || err != nil {
		t.Errorf("a key at its limit: %d, %v", n, err)
	}
}

func TestFrames(t *testing.T) {
	var r wire.Request
	frame := wire.EndFrame(wire.AppendSet(wire.BeginFrame(nil, 77), wire.Native, "/k", []byte("v")), 0, 0)
	for i := range wire.FrameHeader {
		if _, size, err := wire.ParseFrame(frame[:i]); size != 0 || err != nil {
			t.Errorf("%d bytes: %d, %v", i, size, err)
		}
	}
	id, size, err := wire.ParseFrame(frame)
	if id != 77 || size != len(frame) || err != nil {
		t.Fatalf("%d, %d, %v", id, size, err)
	}
	if err := wire.ParseFrameRequest(frame, &wire.DefaultLimits, &r); err != nil || r.ID != 77 || string(r.Key) != "/k" ||
		string(r.Value) != "v" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, _, err := wire.ParseFrame([]byte{4, 0, 0, 0, 1, 0, 0, 0}); !errors.Is(err, cohort.Protocol) {
		t.Errorf("a frame without a code: %v", err)
	}
	extra := append(bytes.Clone(frame), 0)
	if err := wire.ParseFrameRequest(extra, &wire.DefaultLimits, &r); !errors.Is(err, cohort.Protocol) {
		t.Errorf("a byte too many: %v", err)
	}
	if err := wire.ParseFrameRequest(frame[:len(frame)-1], &wire.DefaultLimits, &r); !errors.Is(err, cohort.Protocol) {
		t.Errorf("a byte too few: %v", err)
	}
	flag := wire.AppendQueuePop(wire.BeginFrame(nil, 1), "/q", true)
	flag[len(flag)-1] = 2
	if err := wire.ParseFrameRequest(flag, &wire.DefaultLimits, &r); !errors.Is(err, cohort.Protocol) {
		t.Errorf("a wait flag of 2: %v", err)
	}
}

func TestReplyLimits(t *testing.T) {
	limits := wire.Limits{Key: 10, Value: 10, Keys: 10, Request: 100}
	absurd := binary.LittleEndian.AppendUint64(nil, 1<<50)
	for _, c := range []struct {
		op   wire.Op
		keys int
		b    []byte
	}{
		{wire.Get, 0, absurd},
		{wire.MultiGet, 3, append(wire.AppendString(nil, "a"), absurd...)},
		{wire.QueuePop, 0, append(wire.AppendInt(nil, 1), absurd...)},
		{wire.ListKeys, 0, absurd},
		{wire.ListKeys, 0, wire.AppendInt(nil, -1)},
	} {
		if _, n, _, err := wire.ParseReply(wire.V, c.op, c.keys, c.b, &limits); n != 0 || !errors.Is(err, cohort.TooLarge) {
			t.Errorf("%s: %d, %v", c.op, n, err)
		}
	}
	if r, n, short, err := wire.ParseReply(wire.V, wire.QueuePop, 0, wire.AppendInt(nil, 0), &limits); n != 8 || short ||
		err != nil || r.Num != 0 {
		t.Errorf("an empty queue: %+v %d %v %v", r, n, short, err)
	}
}

func TestWatchEvents(t *testing.T) {
	want := wire.WatchEvent{Kind: wire.KeyUpdated, Key: []byte("/k"), Old: []byte{}, New: []byte("v")}
	b := wire.AppendWatchEvent(nil, want)
	got, n, short, err := wire.ParseWatchEvent(b, &wire.DefaultLimits)
	if n != len(b) || short || err != nil {
		t.Fatalf("%d %v %v", n, short, err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	for i := range b {
		if _, n, short, err := wire.ParseWatchEvent(b[:i], &wire.DefaultLimits); n != 0 || !short || err != nil {
			t.Errorf("%d bytes: %d %v %v", i, n, short, err)
		}
	}
	if _, _, _, err := wire.ParseWatchEvent([]byte{3}, &wire.DefaultLimits); !errors.Is(err, cohort.Protocol) {
		t.Errorf("kind 3: %v", err)
	}
}

// TestPieces cuts random streams of requests anywhere: the pieces must give the same requests as the whole.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]wire.Dialect{wire.Legacy, wire.V}).Draw(t, "dialect")
		var stream []byte
		var want [][]byte
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			one := drawRequest(t, d)
			want = append(want, one)
			stream = append(stream, one...)
		}
		var held []byte
		var p wire.Progress
		var got [][]byte
		for len(stream) > 0 {
			n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
			held, stream = append(held, stream[:n]...), stream[n:]
			for {
				var r wire.Request
				n, err := wire.ParseRequest(d, held, &wire.DefaultLimits, &p, &r)
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					break
				}
				got = append(got, encode(d, &r))
				held = held[n:]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(held) != 0 {
			t.Fatalf("%d bytes left\n%s", len(held), diff)
		}
	})
}

func drawRequest(t *rapid.T, d wire.Dialect) []byte {
	key := rapid.StringN(0, 20, 60)
	value := rapid.SliceOfN(rapid.Byte(), 0, 300)
	ops := []wire.Op{
		wire.Set, wire.CompareSet, wire.Get, wire.Add, wire.Check, wire.Wait, wire.NumKeys, wire.DeleteKey, wire.Append,
		wire.MultiGet, wire.MultiSet, wire.CancelWait,
	}
	if d == wire.V {
		ops = append(ops, wire.Validate, wire.Ping, wire.QueuePush, wire.QueuePop, wire.QueueLen, wire.ListKeys, wire.Barrier)
	} else {
		ops = append(ops, wire.WatchKey)
	}
	r := wire.Request{
		Op: rapid.SampledFrom(ops).Draw(t, "op"), Key: []byte(key.Draw(t, "key")), Value: value.Draw(t, "value"),
		Expected: value.Draw(t, "expected"), Num: rapid.Int64().Draw(t, "num"), Nonce: rapid.Uint32().Draw(t, "nonce"),
	}
	var keys [][]byte
	for range rapid.IntRange(0, 4).Draw(t, "keys") {
		keys = append(keys, []byte(key.Draw(t, "list")))
		if r.Op == wire.MultiSet {
			keys = append(keys, value.Draw(t, "list"))
		}
	}
	r.List = wire.NewList(keys...)
	return encode(d, &r)
}

// FuzzRequest feeds the request parser anything: it must not fail, must take what it says, must give the same answer when
// the bytes come one at a time, and what it read must be written as the same bytes.
func FuzzRequest(f *testing.F) {
	for _, version := range storecapture.Versions {
		blocks, err := storecapture.Load(version)
		if err != nil {
			f.Fatal(err)
		}
		for _, b := range blocks {
			for _, item := range b.Items {
				if item.Request && len(item.Data) < 200 {
					f.Add(byte(dialectOf[version]), item.Data)
				}
			}
		}
	}
	f.Add(byte(wire.Native), wire.AppendQueuePop(nil, "/q", true))
	f.Add(byte(wire.Native), wire.AppendCancel(nil, 3))
	f.Add(byte(wire.Native), wire.AppendSession(nil, [wire.SessionIDSize]byte{1}, [wire.SessionIDSize]byte{2}, 3, 4))
	f.Add(byte(wire.Native), wire.AppendLeave(nil, 5))
	f.Add(byte(wire.Native), wire.AppendAcked(nil, 6))
	f.Add(byte(wire.Native), wire.AppendArrive(nil, "/b", 7, 2))
	f.Add(byte(wire.Native), wire.AppendBackup(nil, true))
	f.Add(byte(wire.Native), wire.AppendKeys(nil, wire.Native, wire.Await, "/a"))
	f.Fuzz(func(t *testing.T, dialect byte, b []byte) {
		d := wire.Dialect(dialect%3) + wire.Legacy
		limits := wire.Limits{Key: 64, Value: 128, Keys: 16, Request: 512}
		var r wire.Request
		var p wire.Progress
		n, err := wire.ParseRequest(d, b, &limits, &p, &r)
		if n < 0 || n > len(b) || n > limits.Request || err != nil && n != 0 {
			t.Fatalf("took %d of %d bytes, %v", n, len(b), err)
		}
		if n > 0 {
			if again := encode(d, &r); !bytes.Equal(again, b[:n]) {
				t.Fatalf("read % x, wrote % x", b[:n], again)
			}
		}
		var q wire.Request
		p = wire.Progress{}
		for i := 1; i <= len(b); i++ {
			m, slow := wire.ParseRequest(d, b[:i], &limits, &p, &q)
			if m == 0 && slow == nil && i < len(b) {
				continue
			}
			if m != n || (slow == nil) != (err == nil) {
				t.Fatalf("bytewise %d, %v; at once %d, %v", m, slow, n, err)
			}
			break
		}
	})
}

// FuzzReply feeds the reply parser anything.
func FuzzReply(f *testing.F) {
	f.Add(byte(wire.Get), 0, wire.AppendString(nil, "value"))
	f.Add(byte(wire.MultiGet), 2, wire.AppendString(wire.AppendString(nil, "a"), ""))
	f.Add(byte(wire.QueuePop), 0, wire.AppendString(wire.AppendInt(nil, 1), "x"))
	f.Add(byte(wire.ListKeys), 0, wire.AppendString(wire.AppendInt(nil, 1), "/k"))
	f.Add(byte(wire.Add), 0, wire.AppendInt(nil, -5))
	f.Fuzz(func(t *testing.T, code byte, keys int, b []byte) {
		limits := wire.Limits{Key: 64, Value: 128, Keys: 16, Request: 512}
		for _, d := range []wire.Dialect{wire.Legacy, wire.V, wire.Native} {
			op, ok := wire.OpOf(d, code)
			if !ok {
				continue
			}
			_, n, short, err := wire.ParseReply(d, op, max(0, keys%16), b, &limits)
			if n < 0 || n > len(b) || short && (n != 0 || err != nil) {
				t.Fatalf("%s: took %d of %d bytes, short %v, %v", op, n, len(b), short, err)
			}
			if size := wire.ReplySize(op, b); n > 0 && size > n && op != wire.Stats {
				t.Fatalf("%s: a reply of %d bytes was said to have at least %d", op, n, size)
			}
		}
		_, _, _, _ = wire.ParseWatchEvent(b, &limits)
		_, _, _ = wire.ParseFrame(b)
	})
}

// TestSetSize: what is said of the beginning of a request is true, wherever it ends.
func TestSetSize(t *testing.T) {
	value := make([]byte, 5000)
	for _, d := range []wire.Dialect{wire.Legacy, wire.V, wire.Native} {
		head := 0
		whole := func(fill func(b []byte) []byte) []byte {
			if d == wire.Native {
				head = wire.FrameHeader
				return wire.EndFrame(fill(wire.BeginFrame(nil, 1)), 0, 0)
			}
			return fill(nil)
		}
		set := whole(func(b []byte) []byte { return wire.AppendSet(b, d, "key", value) })
		for n := range set {
			want := 0
			if n >= head+1+8+3+8 { // the value's length is there
				want = min(len(value), n-head)
			}
			if got := wire.SetSize(d, set[:n]); got != want {
				t.Fatalf("%v, %d bytes: %d, want %d", d, n, got, want)
			}
		}
		for _, b := range [][]byte{
			whole(func(b []byte) []byte { return wire.AppendKey(b, d, wire.Get, string(value)) }),
			whole(func(b []byte) []byte { return wire.AppendCompareSet(b, d, "key", nil, value) }),
			bytes.Repeat([]byte{255}, 100),
		} {
			if got := wire.SetSize(d, b); got != 0 {
				t.Errorf("%v: %d for another request", d, got)
			}
		}
		huge := bytes.Repeat([]byte{255}, 100)
		copy(huge[head:], set[head:head+1]) // a key of 2^64-1 bytes
		if got := wire.SetSize(d, huge); got != 0 {
			t.Errorf("%v: %d for a key that cannot be", d, got)
		}
	}
	if got := wire.SetSize(wire.Undetected, make([]byte, 100)); got != 0 {
		t.Errorf("%d before anything is known", got)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloowire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
)

// items returns the lines of a capture file with their block titles, annotations cut off, comments kept.
func items(tb testing.TB, name string) (blocks []string, lines [][]string) {
	tb.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	block := ""
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "[") {
			block = strings.Trim(line, "[]")
			continue
		}
		if line == "" {
			continue
		}
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, "  #")
		}
		blocks, lines = append(blocks, block), append(lines, strings.Fields(line))
	}
	if err := sc.Err(); err != nil {
		tb.Fatal(err)
	}
	return blocks, lines
}

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	if s == "-" {
		return nil
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// golden is a recorded address record with what the capture's own annotation says about it.
type golden struct {
	block string
	raw   []byte
	note  string
	ranks int
}

func goldenRecords(tb testing.TB) []golden {
	tb.Helper()
	blocks, lines := items(tb, "gloo-blobs.txt")
	newer, more := items(tb, "gloo-blobs-2.14.txt")
	blocks, lines = append(blocks, newer...), append(lines, more...)
	var out []golden
	for i, f := range lines {
		if f[0] != "set" || i+1 == len(lines) || lines[i+1][0] != "#" {
			continue
		}
		note := strings.TrimSuffix(strings.Join(lines[i+1][1:], " "), "; ids []") // left out by lazy ranks
		if !strings.Contains(note, "family") {
			continue
		}
		ranks := strings.Count(note, "family") + 1 // A and B: one address per peer
		if strings.HasPrefix(note, "host") {
			ranks = 3
			if _, ids, ok := strings.Cut(note, "ids ["); ok {
				ranks = strings.Count(ids, ",") + 1
			}
		}
		out = append(out, golden{blocks[i], unhex(tb, f[len(f)-1]), note, ranks}) // a key may hold spaces
	}
	if len(out) < 40 {
		tb.Fatalf("only %d records in the capture", len(out))
	}
	return out
}

var (
	addressNote = regexp.MustCompile(`family (\d+) ([0-9.]+:\d+) seq (-?\d+)`)
	hostNote    = regexp.MustCompile(`host '([^']*)'`)
)

// TestRecordedAddresses decodes what real ranks published and compares with the capture's annotations.
func TestRecordedAddresses(t *testing.T) {
	seen := map[string]int{}
	for _, g := range goldenRecords(t) {
		r, err := ParseRecord(g.raw, g.ranks)
		if err != nil {
			t.Fatalf("%s: %s: %v", g.block, g.note, err)
		}
		want := Record{Generation: C}
		switch g.block[0] {
		case 'A':
			want.Generation = A
		case 'B':
			want.Generation = B
		}
		seen[g.block[:1]]++
		for _, m := range addressNote.FindAllStringSubmatch(g.note, -1) {
			seq, _ := strconv.ParseInt(m[3], 10, 64)
			want.Addrs = append(want.Addrs, Address{netip.MustParseAddrPort(m[2]), seq})
		}
		if m := hostNote.FindStringSubmatch(g.note); m != nil {
			want.Host = m[1]
		}
		if _, ids, ok := strings.Cut(g.note, "ids ["); ok {
			for id := range strings.SplitSeq(strings.TrimSuffix(ids, "]"), ", ") {
				v, _ := strconv.ParseInt(id, 10, 64)
				want.IDs = append(want.IDs, v)
			}
		}
		if diff := cmp.Diff(want, r, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", g.block, diff)
		}
		// What we write differs only in the padding, which real ranks leave uninitialised.
		if diff := cmp.Diff(hex.EncodeToString(zeroPadding(g.raw, r)), hex.EncodeToString(r.Append(nil))); diff != "" {
			t.Errorf("%s: encoding (-recorded +ours):\n%s", g.block, diff)
		}
	}
	for _, generation := range []string{"A", "B", "C", "D", "2"} { // 2.14
		if seen[generation] < 3 {
			t.Errorf("generation %s: %d records", generation, seen[generation])
		}
	}
}

// zeroPadding clears the bytes of every IPv4 address behind its sockaddr_in fields.
func zeroPadding(raw []byte, r Record) []byte {
	b := bytes.Clone(raw)
	at := 0
	if r.Generation == C {
		at = 8 + len(r.Host) + 8
	}
	for range r.Addrs {
		clear(b[at+8 : at+128])
		at += AddressSize
	}
	return b
}

// TestRecordedDiallers checks the rule who dials, and what is written first, against recorded connections.
func TestRecordedDiallers(t *testing.T) {
	blocks, lines := items(t, "gloo-frames.txt")
	records := map[string]map[int]Record{}
	for i, f := range lines {
		if len(f) < 4 || f[0] != "#" || f[1] != "rank" || f[3] != "published:" {
			continue
		}
		rank, _ := strconv.Atoi(f[2])
		note := strings.Join(f[3:], " ")
		var r Record
		for _, m := range addressNote.FindAllStringSubmatch(note, -1) {
			r.Addrs = append(r.Addrs, Address{netip.MustParseAddrPort(m[2]), NoSequence})
		}
		r.Generation = A
		if strings.Contains(note, "ids [0, 1, 2]") {
			r.Generation, r.IDs = C, []int64{0, 1, 2}
		}
		if records[blocks[i]] == nil {
			records[blocks[i]] = map[int]Record{}
		}
		records[blocks[i]][rank] = r
	}
	checked := 0
	for i, f := range lines {
		if f[0] != "@connection" {
			continue
		}
		dialler, _ := strconv.Atoi(f[2])
		listener, _ := strconv.Atoi(f[4])
		theirs, id, hello, err := records[blocks[i]][listener].For(dialler, listener)
		if err != nil {
			t.Fatal(err)
		}
		ours, _, _, err := records[blocks[i]][dialler].For(listener, dialler)
		if err != nil {
			t.Fatal(err)
		}
		if strconv.Itoa(int(theirs.Addr.Port())) != f[6] {
			t.Errorf("%s: rank %d dials port %d, recorded %s", blocks[i], dialler, theirs.Addr.Port(), f[6])
		}
		if dials, err := Dials(ours.Addr, theirs.Addr); err != nil || !dials {
			t.Errorf("%s: rank %d must dial rank %d: %v", blocks[i], dialler, listener, err)
		}
		if dials, err := Dials(theirs.Addr, ours.Addr); err != nil || dials {
			t.Errorf("%s: rank %d must not dial rank %d: %v", blocks[i], listener, dialler, err)
		}
		var wrote []byte
		if hello {
			wrote = AppendPreamble(nil, id)
		}
		if !bytes.Equal(wrote, unhex(t, f[8])) {
			t.Errorf("%s: preamble %x, recorded %s", blocks[i], wrote, f[8])
		}
		checked++
	}
	if checked != 6 {
		t.Errorf("%d connections checked, want 6", checked)
	}
}

func TestDialsComparesSwappedPorts(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	for _, c := range []struct {
		self, peer string
		want       bool
	}{
		{"10.0.0.2:1", "10.0.0.1:60000", true},  // the IP decides first
		{"10.0.0.1:60000", "10.0.0.2:1", false}, // and is compared byte by byte
		{"9.0.0.1:1", "10.0.0.1:1", false},
		{"127.0.0.1:256", "127.0.0.1:255", false}, // 0x0100 -> 0x0001, 0x00ff -> 0xff00
		{"127.0.0.1:255", "127.0.0.1:256", true},
		{"[::2]:1", "[::1]:2", true},
	} {
		got, err := Dials(at(c.self), at(c.peer))
		if err != nil || got != c.want {
			t.Errorf("Dials(%s, %s) = %v, %v", c.self, c.peer, got, err)
		}
	}
	if _, err := Dials(at("127.0.0.1:1"), at("[::1]:1")); !errors.Is(err, cohort.Mismatch) {
		t.Errorf("different families: %v", err)
	}
	if _, err := Dials(at("127.0.0.1:1"), at("127.0.0.1:1")); !errors.Is(err, cohort.Protocol) {
		t.Errorf("the same address twice: %v", err)
	}
}

// TestRecordedFrames decodes every recorded header and encodes it again.
func TestRecordedFrames(t *testing.T) {
	_, lines := items(t, "gloo-frames.txt")
	count := map[Opcode]int{}
	for _, f := range lines {
		if len(f) != 4 || !strings.Contains(f[0], ">") {
			continue
		}
		raw := unhex(t, f[1])
		frame, err := ParseFrame(raw)
		if err != nil {
			t.Fatal(err)
		}
		count[frame.Opcode]++
		again := make([]byte, HeaderSize)
		frame.Put(again)
		if !bytes.Equal(raw, again) {
			t.Fatalf("recorded %x, ours %x", raw, again)
		}
		if want := f[2]; frame.Opcode == Data && want != strconv.FormatUint(frame.Length, 10) {
			t.Errorf("payload of %s bytes in a frame of %d", want, frame.Length)
		}
	}
	for _, op := range []Opcode{Data, SendReady, RecvReady} {
		if count[op] < 50 {
			t.Errorf("%s: only %d recorded frames", op, count[op])
		}
	}
}

func TestSlots(t *testing.T) {
	for _, c := range []struct {
		slot uint64
		want uint64
		tag  uint64
	}{
		{Slot(AllReduce, 1), 0x0400000001000000, 1},
		{Slot(Broadcast, 1), 0x0600000001000000, 1},
		{Slot(Barrier, 8), 0x0700000008000000, 8},
		{Slot(AllToAll, 0xffffffff), 0x08ffffffff000000, 0xffffffff},
		{5, 5, 5},
	} {
		if c.slot != c.want || TagOf(c.slot) != c.tag {
			t.Errorf("slot %#x, tag %d; want %#x, %d", c.slot, TagOf(c.slot), c.want, c.tag)
		}
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	make6 := func(v ...uint64) []byte {
		var b []byte
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		return b
	}
	for name, raw := range map[string][]byte{
		"data, total too small":     make6(48, 1, 0, 0, 4, 0),
		"data, huge":                make6(48+1<<60, 1, 0, 0, 1<<60, 0),
		"data, total overflows":     make6(47, 1, 0, 0, 1<<64-1, 0),
		"notice with a payload":     make6(52, 2, 0, 0, 4, 0),
		"old-style message":         make6(52, 0, 0, 0, 4, 0),
		"unknown, with a payload":   make6(100, 9, 0, 0, 52, 0),
		"an HTTP request":           []byte("GET / HTTP/1.1\r\nHost: localhost:12345\r\nUser-Agent: x\r\n\r\n")[:48],
		"a TLS client hello (part)": append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, make([]byte, 37)...),
	} {
		if f, err := ParseFrame(raw); !errors.Is(err, cohort.Protocol) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	if _, err := ParseFrame(make6(48, 9, 0, 0, 7, 0)); err != nil {
		t.Errorf("an unknown opcode without payload is ignored by gloo: %v", err)
	}
}

func TestRecordsThatAreRefused(t *testing.T) {
	good := Record{
		Generation: C, Host: "vm", Addrs: []Address{{netip.MustParseAddrPort("127.0.0.1:5"), NoSequence}},
		IDs: []int64{0, 1, 2},
	}.Append(nil)
	bad := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	for name, raw := range map[string][]byte{
		"empty":               nil,
		"short":               good[:20],
		"host longer than it": bad(func(b []byte) []byte { binary.LittleEndian.PutUint64(b, 1<<40); return b }),
		"host length -1":      bad(func(b []byte) []byte { binary.LittleEndian.PutUint64(b, 1<<64-1); return b }),
		"address length":      bad(func(b []byte) []byte { b[10]++; return b }),
		"family":              bad(func(b []byte) []byte { b[18] = 7; return b }),
		"port 0":              bad(func(b []byte) []byte { b[20], b[21] = 0, 0; return b }),
		"half an id":          good[:len(good)-4],
	} {
		if r, err := ParseRecord(raw, 3); !errors.Is(err, cohort.Protocol) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestRecordOfAnotherWorld: a record tells the size of the world that its rank was told, in every generation.
func TestRecordOfAnotherWorld(t *testing.T) {
	t.Parallel()
	a := Address{netip.MustParseAddrPort("127.0.0.1:4000"), NoSequence}
	for _, r := range []Record{
		{Generation: A, Addrs: []Address{a, a}},
		{Generation: B, Addrs: []Address{{a.Addr, 0}, {a.Addr, 1}}},
		{Generation: C, Host: "h", Addrs: []Address{a}, IDs: []int64{1, 2, 3}},
	} {
		for _, size := range []int{2, 4} {
			got, err := ParseRecord(r.Append(nil), size)
			if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), "a world size of 3") {
				t.Errorf("%v, read by a rank of %d: %+v, %v", r.Generation, size, got, err)
			}
		}
	}
}

func genAddress(t *rapid.T, seq int64) Address {
	port := uint16(rapid.IntRange(1, 65535).Draw(t, "port"))
	if rapid.Bool().Draw(t, "v6") {
		ip := netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip")))
		if ip.Is4In6() {
			ip = netip.IPv6Loopback()
		}
		return Address{netip.AddrPortFrom(ip, port), seq}
	}
	return Address{netip.AddrPortFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip"))), port), seq}
}

// TestRecordsRoundTrip checks that every record of every generation is read back as what it is.
func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 70).Draw(t, "size")
		r := Record{Generation: rapid.SampledFrom([]Generation{A, B, C}).Draw(t, "generation")}
		switch r.Generation {
		case A, B:
			for i := range size - 1 {
				seq := int64(NoSequence)
				if r.Generation == B {
					seq = int64(i)
				}
				r.Addrs = append(r.Addrs, genAddress(t, seq))
			}
		default:
			r.Host = rapid.StringN(0, 300, 300).Draw(t, "host")
			r.Addrs = []Address{genAddress(t, NoSequence)}
			if rapid.Bool().Draw(t, "ids") {
				r.IDs = rapid.SliceOfN(rapid.Int64(), size, size).Draw(t, "id")
			}
		}
		got, err := ParseRecord(r.Append(nil), size)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	for _, g := range goldenRecords(f) {
		f.Add(g.raw, g.ranks)
	}
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		r, err := ParseRecord(raw, size)
		if err != nil {
			return
		}
		again, err := ParseRecord(r.Append(nil), size)
		if err != nil {
			t.Fatalf("%+v does not read back: %v", r, err)
		}
		if diff := cmp.Diff(r, again, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Fatal(diff)
		}
		for rank := range min(size, 100) {
			for owner := range min(size, 100) {
				if rank != owner {
					if _, _, _, err := r.For(rank, owner); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

func FuzzParseFrame(f *testing.F) {
	_, lines := items(f, "gloo-frames.txt")
	for i, line := range lines {
		if len(line) == 4 && strings.Contains(line[0], ">") && i%20 == 0 {
			f.Add(unhex(f, line[1]))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) < HeaderSize {
			return
		}
		frame, err := ParseFrame(raw)
		if err != nil {
			return
		}
		again := make([]byte, HeaderSize)
		frame.Put(again)
		back, err := ParseFrame(again)
		if err != nil || back != frame {
			t.Fatalf("%+v came back as %+v, %v", frame, back, err)
		}
	})
}

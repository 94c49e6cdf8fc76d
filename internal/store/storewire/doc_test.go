// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storewire

import (
	"bytes"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
)

// docTable returns the rows of the first table under a heading of docs/wire/tcpstore.md, without its head.
func docTable(t *testing.T, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/wire/tcpstore.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "## "+heading+" (checked)\n")
	if !ok {
		t.Fatalf("no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) < 3 {
		t.Fatalf("section %q has no table", heading)
	}
	return rows[2:]
}

func opNamed(t *testing.T, name string) Op {
	t.Helper()
	for op, n := range opNames {
		if n == name {
			return Op(op)
		}
	}
	t.Fatalf("no operation is called %q", name)
	return 0
}

func TestDocCodes(t *testing.T) {
	seen := map[Op]bool{}
	for _, row := range docTable(t, "Codes") {
		op := opNamed(t, row[0])
		seen[op] = true
		for i, d := range []Dialect{Legacy, V, Native} {
			want := row[i+1]
			code := codeOf[d][op]
			got := "-"
			if code != noOp {
				got = strconv.Itoa(int(code))
				if back, _ := OpOf(d, byte(code)); back != op {
					t.Errorf("%s: code %d is %s, want %s", d, code, back, op)
				}
			}
			if got != want {
				t.Errorf("%s in %s: the codec has %s, the document %s", op, d, got, want)
			}
		}
	}
	for op, name := range opNames {
		if name != "" && !seen[Op(op)] {
			t.Errorf("%s is not in the document", name)
		}
	}
}

// layoutText writes a request's layout in the document's words.
func layoutText(fields []field) string {
	if len(fields) == 0 {
		return "-"
	}
	words := map[field]string{
		fKey: "string", fValue: "string", fExpected: "string", fNum: "i64", fNonce: "u32", fWait: "u8", fKeys: "keys", fPairs: "pairs",
		fSeq: "u64", fAck: "u64", fSub: "u32", fInner: "request",
	}
	var s []string
	for _, f := range fields {
		s = append(s, words[f])
	}
	return strings.Join(s, " ")
}

func TestDocLayouts(t *testing.T) {
	// A reply of each form that the document names, and how many bytes of it ParseReply must take for two keys.
	replies := map[string][]byte{
		"-": nil, "(empty)": nil, "u8": {1}, "u32": {1, 2, 3, 4}, "i64": AppendInt(nil, 1), "string": AppendString(nil, "ab"),
		"string for each key":       AppendString(AppendString(nil, "ab"), ""),
		"i64, if over 0 string":     AppendString(AppendInt(nil, 1), "ab"),
		"i64, then string for each": AppendString(AppendString(AppendInt(nil, 2), "ab"), "c"),
		"string i64":                AppendInt(AppendString(nil, "ab"), 3),
		"i64 i64":                   AppendInt(AppendInt(nil, 1), 2),
		"JSON":                      []byte("{}"),
	}
	rows := docTable(t, "Requests and replies")
	for _, row := range rows {
		op := opNamed(t, row[0])
		for _, d := range []Dialect{Legacy, V, Native} {
			if codeOf[d][op] == noOp {
				continue
			}
			request, reply := row[1], row[2]
			if d == Native && row[3] != "" {
				request = row[3]
			}
			if d == Native && row[4] != "" {
				reply = row[4]
			}
			if got := layoutText(layouts[d][op]); got != request {
				t.Errorf("%s in %s: the codec reads %q, the document says %q", op, d, got, request)
			}
			if got, want := HasReply(d, op), reply != "-"; got != want {
				t.Errorf("%s in %s: has a reply: the codec says %v, the document %v", op, d, got, want)
			}
			if op == Numbered {
				continue // its reply is that of the request inside
			}
			bytes, ok := replies[reply]
			if !ok {
				t.Fatalf("%s: the test does not know the reply %q", op, reply)
			}
			_, n, short, err := ParseReply(d, op, 2, bytes, &DefaultLimits)
			if n != len(bytes) || short || err != nil {
				t.Errorf("%s in %s: a reply %q takes %d of %d bytes (short %v, %v)", op, d, reply, n, len(bytes), short, err)
			}
			for cut := range bytes {
				if reply == "JSON" {
					break
				}
				if _, n, short, err := ParseReply(d, op, 2, bytes[:cut], &DefaultLimits); n != 0 || !short || err != nil {
					t.Errorf("%s in %s: %d of %d bytes of a reply %q: %d, short %v, %v", op, d, cut, len(bytes), reply, n, short, err)
				}
			}
		}
	}
	if len(rows) != 32 {
		t.Errorf("%d rows, want one for each of 32 operations", len(rows))
	}
}

func TestDocExamples(t *testing.T) {
	rows := docTable(t, "Examples")
	for _, row := range rows {
		t.Run(row[0]+" "+row[1], func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(row[2], " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			d := map[string]Dialect{"legacy": Legacy, "v": V, "native": Native}[row[0]]
			got := encodeExample(t, d, row[1])
			if !bytes.Equal(got, want) {
				t.Errorf("the codec writes % x", got)
			}
			var r Request
			var p Progress
			if d == Native {
				if _, size, err := ParseFrame(want); err != nil || size != len(want) {
					t.Fatalf("frame: %d %v", size, err)
				}
				if err := ParseFrameRequest(want, &DefaultLimits, &r); err != nil {
					t.Fatal(err)
				}
			} else if n, err := ParseRequest(d, want, &DefaultLimits, &p, &r); n != len(want) || err != nil {
				t.Fatalf("parse: %d %v", n, err)
			}
		})
	}
	if len(rows) < 25 {
		t.Errorf("only %d examples", len(rows))
	}
}

// encodeExample writes a request that is given as `op "key" "value" number`, a native one with `id:` in front.
func encodeExample(t *testing.T, d Dialect, text string) []byte {
	t.Helper()
	var b []byte
	id, rest, native := strings.Cut(text, ": ")
	if native {
		n, err := strconv.Atoi(id)
		if err != nil {
			t.Fatal(err)
		}
		b, text = BeginFrame(nil, uint32(n)), rest
	}
	words := strings.Fields(text)
	var s []string
	var n int64
	wait := false
	for _, w := range words[1:] {
		if u, err := strconv.Unquote(w); err == nil {
			s = append(s, u)
		} else if w == "wait" {
			wait = true
		} else if n, err = strconv.ParseInt(w, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	switch op := opNamed(t, words[0]); op {
	case Validate:
		b = AppendValidate(b)
	case Ping:
		b = AppendPing(b, d, uint32(n))
	case Upgrade:
		b = AppendUpgrade(b)
	case Set, Append, QueuePush:
		b = AppendKeyValue(b, d, op, s[0], []byte(s[1]))
	case CompareSet:
		b = AppendCompareSet(b, d, s[0], []byte(s[1]), []byte(s[2]))
	case Add:
		b = AppendAdd(b, d, s[0], n)
	case Barrier:
		b = AppendBarrier(b, d, s[0], n)
	case Check, Wait, MultiGet, Peek, Await:
		b = AppendKeys(b, d, op, s...)
	case MultiSet:
		b = AppendMultiSet(b, d, s[:1], [][]byte{[]byte(s[1])})
	case QueuePop:
		if d == Native {
			b = AppendQueuePop(b, s[0], wait)
		} else {
			b = AppendKey(b, d, op, s[0])
		}
	case CancelWait:
		if d == Native {
			b = AppendCancel(b, uint32(n))
		} else {
			b = AppendPlain(b, d, op)
		}
	case Hello:
		b = AppendHello(b, []byte(s[0]))
	case Clear:
		b = AppendClear(b, []byte(s[0]))
	case Session:
		b = AppendSession(b, [SessionIDSize]byte([]byte(s[0])), [SessionIDSize]byte([]byte(s[1])), uint64(n), 1)
	case Leave:
		b = AppendLeave(b, uint32(n))
	case Acked:
		b = AppendAcked(b, uint64(n))
	case Arrive:
		b = AppendArrive(b, s[0], n, 3)
	case Numbered:
		b = AppendAdd(AppendNumbered(b, 5, 4, uint32(n)), d, s[0], 1)
	case Backup:
		b = AppendBackup(b, n == 1)
	case NumKeys, ListKeys, Stats:
		b = AppendPlain(b, d, op)
	default:
		b = AppendKey(b, d, op, s[0])
	}
	if native {
		b = EndFrame(b, 0, 0)
	}
	return b
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// checkGolden compares text with a file in testdata. Escapes are written in a readable form.
func checkGolden(t *testing.T, name, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, "\x1b", "<ESC>")
	path := filepath.Join("testdata", name+".golden")
	if *rewrite {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs; if that is right: go test ./cmd/cohort/internal/tui -rewrite\n%s", path, diff)
	}
}

func busyTop() Top {
	return Top{
		Addr: "10.0.0.1:29500", Uptime: 93*time.Minute + 4*time.Second,
		Conns: map[string]int{"v": 62, "legacy": 4, "native": 2, "silent": 2},
		Keys:  1234567, Queues: 3, Bytes: 45 << 20, Ops: 98765432, Rate: 12345.4,
		ByOpRate: map[string]float64{"wait": 8000, "get": 4000, "set": 300, "add": 45, "check": 0.2, "stats": 1},
		Waiting:  4,
		Workers:  64, Here: []int{0, 1, 2, 5}, Gone: []int{4},
		Waits: []Wait{
			{Client: "10.0.0.7:50001", Keys: []string{"default_pg/0//cpu//0/3"}, Since: 340 * time.Millisecond},
			{Client: "10.0.0.8:50002", Name: "rank 2, node8 pid 4711", Keys: []string{"ready/0", "ready/1"}, Since: 73 * time.Second},
			{Client: "10.0.0.9:50003", Name: "rank 3, node9 pid 4712", Keys: []string{"evil\x1b[31m\nkey"}, Since: 12 * time.Second},
			{Client: "[2001:db8::1]:50004", Keys: []string{strings.Repeat("long/", 60)}, Since: 26 * time.Hour},
		},
	}
}

func TestTopFrames(t *testing.T) {
	quiet := Top{Addr: "127.0.0.1:29500", Uptime: 900 * time.Millisecond, Conns: map[string]int{"native": 1}}
	lost := quiet
	lost.Err = "tcpstore: stats: peer lost (peer 127.0.0.1:29500): the server closed the connection"
	for _, c := range []struct {
		name          string
		top           Top
		width, height int
		colour        bool
	}{
		{"top-quiet", quiet, 100, 0, false},
		{"top-pending", Top{Addr: "127.0.0.1:29500", Pending: true}, 100, 0, false},
		{"top-busy", busyTop(), 100, 0, false},
		{"top-busy-colour", busyTop(), 100, 0, true},
		{"top-busy-narrow", busyTop(), 50, 0, false},
		{"top-busy-low", busyTop(), 100, 8, false},
		{"top-lost", lost, 80, 0, true},
	} {
		checkGolden(t, c.name, c.top.Frame(c.width, c.height, Style{Colour: c.colour}))
	}
}

func TestDemoFrames(t *testing.T) {
	d := Demo{
		Addr: "127.0.0.1:40000", Elapsed: 700 * time.Millisecond, Acts: []string{"meet", "exchange", "barrier"},
		Workers: []DemoWorker{
			{PID: 101, States: []State{Done, Done, Playing}, Last: "read the process ids of all: 101 102 103 104"},
			{PID: 102, States: []State{Done, Failed, Ahead}, Last: "tcpstore: get: peer lost"},
			{PID: 0, States: nil},
			{PID: 1234567, States: []State{Done, Done, Done}, Last: strings.Repeat("long ", 40)},
		},
		Waits: []Wait{
			{Client: "127.0.0.1:1", Name: "rank 0, here pid 101", Keys: []string{"demo/barrier/open"}},
			{Client: "127.0.0.1:2", Keys: []string{"a", "b"}},
		},
	}
	checkGolden(t, "demo", d.Frame(110, Style{}))
	checkGolden(t, "demo-colour", d.Frame(110, Style{Colour: true}))
	d.Waits = nil
	checkGolden(t, "demo-end", d.Frame(80, Style{}))
}

// Whatever strangers put into keys and names, a frame keeps to its size and holds no escape of theirs.
func TestFrameProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		top := Top{
			Addr: text.Draw(t, "addr"), Err: text.Draw(t, "err"), Keys: rapid.Int64Min(0).Draw(t, "keys"),
			Bytes: rapid.Int64Min(0).Draw(t, "bytes"),
			Conns: map[string]int{"v": rapid.IntMin(0).Draw(t, "v")}, Uptime: time.Duration(rapid.Int64().Draw(t, "uptime")),
		}
		for range rapid.IntRange(0, 5).Draw(t, "waits") {
			top.Waits = append(top.Waits, Wait{
				Client: text.Draw(t, "client"), Name: text.Draw(t, "name"), Keys: []string{text.Draw(t, "key")},
				Since: time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "since")),
			})
		}
		width, height := rapid.IntRange(40, 200).Draw(t, "width"), rapid.IntRange(2, 40).Draw(t, "height")
		frame := top.Frame(width, height, Style{})
		lines := strings.Split(strings.TrimSuffix(frame, "\n"), "\n")
		if len(lines) > height {
			t.Fatalf("%d lines in a frame of %d", len(lines), height)
		}
		for _, line := range lines {
			if columns(line) > width || strings.ContainsAny(line, "\x1b\r\a\x00") || !utf8.ValidString(line) {
				t.Fatalf("a line of %d columns in a frame of %d: %q", columns(line), width, line)
			}
		}
	})
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 0: "0ms", 999 * time.Millisecond: "999ms", 1500 * time.Millisecond: "1.5s", 59 * time.Second: "59s",
		61 * time.Second: "1m01s", 3661 * time.Second: "1h01m", 49 * time.Hour: "2d01h",
	} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v) = %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1 000", -1234567: "-1 234 567"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 3 << 30: "3.0 GiB", 1<<63 - 1: "8.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdef", 5, "ab..."},
		{"abcdef", 2, "ab"},
		{"äöü", 3, "äöü"},
		{"検査検査", 8, "検査検査"},
		{"検査検査", 7, "検査..."},
		{"検査検査", 6, "検..."},
		{"検査", 3, "検"},
		{"e\u0301e\u0301", 2, "e\u0301e\u0301"},
		{"x", 0, ""},
		{"x", -3, ""},
	} {
		if got := Cut(c.text, c.width); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.text, c.width, got, c.want)
		}
	}
	if got := pad("検査", 6) + "|"; got != "検査  |" {
		t.Errorf("pad: %q", got)
	}
}

func TestStyle(t *testing.T) {
	if IsTerminal(&bytes.Buffer{}) || StyleFor(&bytes.Buffer{}, func(string) string { return "" }).Colour {
		t.Error("a buffer is not a terminal")
	}
	on := Style{Colour: true}
	if fmt.Sprint(on.Red("x"), on.Bold(""), Style{}.Red("x")) != "\x1b[31mx\x1b[0mx" {
		t.Error("colours")
	}
}

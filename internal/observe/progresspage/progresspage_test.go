// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package progresspage

import (
	"encoding/hex"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// example is what docs/wire/progress.md shows.
func example() []byte {
	b := make([]byte, pageSize)
	putHeader(b, 1234)
	putSteps(b, 120, time.Second)
	putSection(b, 0, "load", 2*time.Second)
	return b
}

// table returns the cells of a table of the page, without its heading.
func table(t *testing.T, name string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/wire/progress.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\ntable: "+name+"\n\n")
	if !found {
		t.Fatalf("no table %s in the document", name)
	}
	block, _, _ := strings.Cut(rest, "\n\n")
	for line := range strings.Lines(block) {
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|\n"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	return rows[2:]
}

// TestDocumentedLayout: the rows of a table follow each other without a gap, and the examples are what is written.
func TestDocumentedLayout(t *testing.T) {
	t.Parallel()
	b := example()
	for name, part := range map[string][]byte{
		"header": b[:headerSize], "thread": b[headerSize:][:8], "section": b[headerSize+8:][:sectionSize],
	} {
		at := 0
		for _, row := range table(t, name) {
			size, err := strconv.Atoi(row[1])
			if err != nil || row[0] != strconv.Itoa(at) || at+size > len(part) {
				t.Fatalf("%s: %q does not follow what stands before it, which ends at %d of %d", name, row, at, len(part))
			}
			got := hex.EncodeToString(part[at : at+size])
			if !strings.HasPrefix(got, row[3]) || strings.Trim(got[len(row[3]):], "0") != "" {
				t.Errorf("%s: %s is %s, not %s", name, row[2], got, row[3])
			}
			at += size
		}
		if at != len(part) {
			t.Errorf("%s: the table ends at %d of %d bytes", name, at, len(part))
		}
	}
	if pageSize != 7864 || threadSize != 520 {
		t.Errorf("the page has %d bytes and a place %d", pageSize, threadSize)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got, err := decode(example())
	want := Page{
		PID: 1234, Steps: 120, Stepped: time.Second,
		Threads: []Thread{{unbound, []Section{{"load", 2 * time.Second}}}},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, got))
	}
	for _, bad := range [][]byte{nil, example()[1:], append(example(), 0), append([]byte("x"), example()[1:]...)} {
		if _, err := decode(bad); err == nil {
			t.Errorf("%d bytes are accepted", len(bad))
		}
	}
	newer := example()
	newer[8] = 2
	if _, err := decode(newer); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("another version: %v", err)
	}
}

// TestInnermost: the main thread counts before the latest.
func TestInnermost(t *testing.T) {
	t.Parallel()
	early, late := []Section{{"early", 1}, {"inner", 2}}, []Section{{"late", 9}}
	for _, c := range []struct {
		threads []Thread
		want    string
	}{
		{nil, ""},
		{[]Thread{{8, late}, {7, early}}, "inner"},
		{[]Thread{{8, late}, {9, early}}, "late"},
		{[]Thread{{8, early}, {9, late}}, "late"},
	} {
		if s, found := (Page{PID: 7, Threads: c.threads}).Innermost(); s.Name != c.want || found != (c.want != "") {
			t.Errorf("%v: %q, %v", c.threads, s.Name, found)
		}
	}
}

// TestCut: a name ends at the end of a character.
func TestCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", maxName-1)
	for name, want := range map[string]string{
		"": "", "load": "load", "a\x00b": "a", long + "b": long + "b", long + "bc": long + "b", long + "é": long, long + "日": long,
	} {
		if got := cut(name); got != want {
			t.Errorf("%q: %q, not %q", name, got, want)
		}
	}
}

// FuzzDecode: hostile pages neither crash nor grow.
func FuzzDecode(f *testing.F) {
	f.Add(example()[8:])
	f.Fuzz(func(t *testing.T, tail []byte) {
		b := make([]byte, pageSize)
		copy(b, magic)
		copy(b[8:], tail)
		p, err := decode(b)
		if err != nil {
			return
		}
		for _, thread := range p.Threads {
			for _, s := range thread.Sections {
				if len(s.Name) > 3*maxName || s.Since < 0 || len(thread.Sections) > maxDepth {
					t.Errorf("%+v", thread)
				}
			}
		}
		p.Innermost()
	})
}

// TestWriter: what is written is found in /proc, with places that are used again, and more sections than there are places.
func TestWriter(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("this system has no page")
	}
	var w Writer
	w.Step()
	w.StepTo(41)
	w.Step()
	outer := w.Begin("outer")
	inner := w.Begin("inner")
	p, err := decode(w.mu.page)
	if err != nil || p.Steps != 42 || p.PID != os.Getpid() || Age(p.Stepped) > time.Minute || len(p.Threads) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	if s, _ := p.Innermost(); s.Name != "inner" {
		t.Errorf("in %q", s.Name)
	}
	w.End(inner)
	w.End(w.Begin("another"))
	p, _ = decode(w.mu.page)
	if s, _ := p.Innermost(); s.Name != "outer" || len(p.Threads) != 1 {
		t.Errorf("%+v", p)
	}
	w.End(outer)
	p, _ = decode(w.mu.page)
	var places []int
	if found, ok := Find("/proc", os.Getpid(), os.Getpid()); !ok || !cmp.Equal(found, p) {
		t.Errorf("found %v: %+v", ok, found)
	}
	if _, ok := Find("/proc", os.Getpid(), os.Getpid()+1); ok {
		t.Error("the page of another process is taken for this one's")
	}
	for range Threads + 3 {
		places = append(places, w.Begin("many"))
	}
	if p, _ = decode(w.mu.page); len(p.Threads) != Threads {
		t.Errorf("%d places are used", len(p.Threads))
	}
	for _, place := range places {
		w.End(place)
	}
	if p, _ = decode(w.mu.page); len(p.Threads) != 0 || w.mu.used != 0 {
		t.Errorf("%+v, %b", p, w.mu.used)
	}
}

func BenchmarkSection(b *testing.B) {
	var w Writer
	for b.Loop() {
		w.End(w.Begin("load"))
	}
}

func BenchmarkStep(b *testing.B) {
	var w Writer
	for b.Loop() {
		w.Step()
	}
}

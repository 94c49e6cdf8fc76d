// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
)

// table returns the cells of a table of docs/wire/storelog.md, without its heading.
func table(t *testing.T, name string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/wire/storelog.md")
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

// examples are what the document shows.
func examples() map[string][]byte {
	h := header{role: segmentFile, identity: ID{10}, cluster: ID{11}, lsn: 7, size: 4096, salt: 5, made: 9}
	head := h.encode()
	records := []Record{{Kind: 'A', Data: []byte("hello")}, {Kind: 'B', Data: []byte("abc")}}
	batch := appendBatch(nil, h.seed, headerSize+frameSize, 7, records)
	f := &memory{}
	w, _ := newSnapshotWriter(f, &h)
	_, _ = io.WriteString(w, "state")
	_ = w.finish()
	return map[string][]byte{
		"header": head, "frame": batch[:frameSize], "record": batch[frameSize:][:recordSize+5], "part": f.b[headerSize:][:chunkHead+5],
	}
}

// memory is a file.
type memory struct {
	File
	b []byte
}

func (m *memory) WriteAt(b []byte, at int64) (int, error) {
	m.b = append(m.b[:at], b...)
	return len(b), nil
}

// TestDocumentedLayout: the rows of a table follow each other without a gap, and the examples are what is written.
func TestDocumentedLayout(t *testing.T) {
	t.Parallel()
	for name, part := range examples() {
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
}

// FuzzWalk: whatever a segment holds behind its header, reading it ends, and finds no more than is there.
func FuzzWalk(f *testing.F) {
	h := header{role: segmentFile, lsn: 1, size: 1024}
	h.encode()
	mark := appendFrame(nil, h.seed, frame{kind: markFrame, offset: headerSize, lsn: 1})
	batch := appendBatch(mark, h.seed, headerSize+frameSize, 1, []Record{{Kind: 1, Data: []byte("a")}, {Data: make([]byte, 300)}})
	f.Add(batch)
	f.Add(append(bytes.Clone(batch), mark...))
	f.Add(batch[:100])
	f.Fuzz(func(t *testing.T, tail []byte) {
		b := append(h.encode(), tail...)
		w := newWalk(b, h)
		found := int64(0)
		for {
			if err := w.run(func(r Record) error { found += recordSize + int64(len(r.Data)); return nil }); err != nil {
				t.Fatal(err)
			}
			_ = w.lost()
			if !w.resume() {
				break
			}
		}
		if found > int64(len(tail)) || w.end > int64(len(b)) {
			t.Errorf("%d bytes of records up to %d, in %d bytes", found, w.end, len(b))
		}
	})
}

// FuzzSnapshot: a snapshot is read as it was written, or not to its end.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte("state"), 140, byte(1))
	f.Add(bytes.Repeat([]byte("0123456789"), 10000), 70000, byte(0))
	f.Fuzz(func(t *testing.T, state []byte, at int, change byte) {
		file := &memory{}
		h := header{role: snapshotFile}
		w, _ := newSnapshotWriter(file, &h)
		_, _ = w.Write(state)
		_ = w.finish()
		if at < headerSize || at >= len(file.b) {
			change, at = 0, 0
		}
		file.b[at] ^= change
		r := snapshotReader{name: "x", at: headerSize, sum: h.seed, chunk: make([]byte, chunkHead+chunkSize)}
		r.r = bufio.NewReader(bytes.NewReader(file.b[headerSize:]))
		got, err := io.ReadAll(&r)
		if change == 0 && (err != nil || !bytes.Equal(got, state)) || change != 0 && err == nil {
			t.Errorf("%d bytes of %d, %v, with %#x changed at %d", len(got), len(state), err, change, at)
		}
	})
}

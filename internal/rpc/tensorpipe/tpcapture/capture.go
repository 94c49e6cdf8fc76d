// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tpcapture reads recorded TensorPipe frames of real PyTorch workers, for tests. Each line is
//
//	(">" | "<") connection length hex ["cut" n "sha256" hex] "  # " note
//
// where ">" is from the side that dialled the connection. Blocks begin with "[title]".
package tpcapture

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Frame is one recorded frame.
type Frame struct {
	Block  string // such as "2.6.0 rpc_sync torch.add(ones(2), 1)"
	Dialer bool   // sent by the side that dialled the connection
	Conn   string
	Data   []byte
	Cut    bool // only the beginning was recorded
	Note   string
}

// Message is a recorded RPC message: the payloads that follow a descriptor, and its storages.
type Message struct {
	Block    string
	Dialer   bool
	Payloads [][]byte
	Storages [][]byte
	Cut      bool
}

// Load reads the frames of a file.
func Load(path string) ([]Frame, error) {
	text, err := os.ReadFile(path) //nolint:gosec // a test's own file
	if err != nil {
		return nil, err
	}
	var frames []Frame
	block := ""
	for n, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "[") {
			block = line[1:strings.LastIndex(line, "]")]
			continue
		}
		if !strings.HasPrefix(line, "> c") && !strings.HasPrefix(line, "< c") {
			continue
		}
		item, note, _ := strings.Cut(line, "  # ")
		fields := strings.Fields(item)
		if len(fields) < 4 {
			return nil, fmt.Errorf("%s:%d: %d fields", path, n+1, len(fields))
		}
		f := Frame{Block: block, Dialer: fields[0] == ">", Conn: fields[1], Note: note, Cut: len(fields) > 4}
		if fields[3] != "-" {
			if f.Data, err = hex.DecodeString(fields[3]); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
			}
		}
		if length, err := strconv.Atoi(fields[2]); err != nil || !f.Cut && length != len(f.Data) {
			return nil, fmt.Errorf("%s:%d: length %s of %d bytes", path, n+1, fields[2], len(f.Data))
		}
		frames = append(frames, f)
	}
	return frames, nil
}

// Messages puts the frames of RPC messages together.
func Messages(frames []Frame) []*Message {
	var out []*Message
	type key struct {
		block, conn string
		dialer      bool
	}
	open := map[key]*Message{}
	var last *Message
	for _, f := range frames {
		k := key{f.Block, f.Conn, f.Dialer}
		switch {
		case strings.HasPrefix(f.Note, "Descriptor"):
			open[k] = &Message{Block: f.Block, Dialer: f.Dialer}
			out = append(out, open[k])
		case strings.HasPrefix(f.Note, "payload"):
			last = open[k]
			last.Payloads = append(last.Payloads, f.Data)
			last.Cut = last.Cut || f.Cut
		case strings.HasPrefix(f.Note, "tensor storage"):
			last.Storages = append(last.Storages, f.Data)
		}
	}
	return out
}

// Table returns the rows of the first table under a heading of a markdown text, without its head.
func Table(markdown, heading string) [][]string {
	_, text, _ := strings.Cut(markdown, "## "+heading+"\n")
	var rows [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(rows) > 0 || strings.HasPrefix(line, "## ") {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) < 2 {
		return nil
	}
	return rows[2:]
}

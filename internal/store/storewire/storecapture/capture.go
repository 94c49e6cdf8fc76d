// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storecapture reads recorded TCPStore sessions of real PyTorch processes for tests. The files beside this one
// have one block per operation; their grammar is in Load.
package storecapture

import (
	"bufio"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
)

//go:embed tcpstore-*.txt
var files embed.FS

// Item is what one side sent.
type Item struct {
	Request bool   // from the client
	Conn    string // "" is the client under test, "b" a second one
	Data    []byte
	Note    string // the annotation: operation and arguments
}

// Block is one operation of the Python API.
type Block struct {
	Title string
	Attrs map[string]string
	Items []Item
}

// Versions are the PyTorch versions that were recorded.
var Versions = []string{"1.13", "2.6", "2.14"}

// Load returns the session of a PyTorch version.
func Load(version string) ([]Block, error) {
	f, err := files.Open("tcpstore-" + version + ".txt")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var blocks []Block
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		switch {
		case text == "" || text[0] == '#':
		case text[0] == '[':
			blocks = append(blocks, Block{Title: text[1:strings.LastIndexByte(text, ']')], Attrs: map[string]string{}})
		case len(blocks) == 0:
			return nil, fmt.Errorf("capture %s: line %d stands before the first block", version, n)
		case text[0] == '@':
			name, value, _ := strings.Cut(text[1:], " ")
			blocks[len(blocks)-1].Attrs[name] = value
		default:
			item, err := parseItem(text)
			if err != nil {
				return nil, fmt.Errorf("capture %s: line %d: %w", version, n, err)
			}
			b := &blocks[len(blocks)-1]
			b.Items = append(b.Items, item)
		}
	}
	return blocks, lines.Err()
}

func parseItem(text string) (Item, error) {
	text, note, _ := strings.Cut(text, "  #")
	sign, digits, ok := strings.Cut(text, " ")
	if !ok || sign[0] != '>' && sign[0] != '<' {
		return Item{}, fmt.Errorf("%q is not an item", text)
	}
	item := Item{Request: sign[0] == '>', Conn: sign[1:], Note: strings.TrimSpace(note)}
	if digits == "-" {
		return item, nil
	}
	var err error
	item.Data, err = hex.DecodeString(digits)
	return item, err
}

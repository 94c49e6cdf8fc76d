// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package torchdump reads PyTorch's flight recorder dumps, of gloo and of NCCL: JSON, and pickles, which it reads as data
// only.
package torchdump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/python/pickle"
)

// Dump is what one rank recorded.
type Dump struct {
	Version string
	Entries []Entry
	// Members are the global ranks of groups by name, where the dump reports them (NCCL).
	Members map[string][]int
}

// Entry is one operation.
type Entry struct {
	// Group is the name of the process group ("0"), Desc its description ("default_pg").
	Group, Desc string
	// Seq is the number of the collective in its group, the same on all ranks.
	Seq int
	// Backend and Op are the two halves of "gloo:all_reduce".
	Backend, Op string
	P2P         bool
	// Open says that the operation is not finished.
	Open bool
	// Created is when it was called, in nanoseconds of the epoch.
	Created int64
	// Sizes are the shapes of the inputs, as text: "[[4, 2]]".
	Sizes, Types string
	// Peer is the global rank of the other side of a message of a Go rank, -1: not known.
	Peer int
	// Where is the innermost line of the program's own code: "train.py:53", or "".
	Where string
}

const maxDump = 256 << 20

// Parse reads a dump of either kind.
func Parse(data []byte) (*Dump, error) {
	if len(data) == 0 {
		return nil, errors.New("torchdump: an empty file")
	}
	if len(data) > maxDump {
		return nil, fmt.Errorf("torchdump: %d bytes; at most %d are read", len(data), maxDump)
	}
	var top map[string]any
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := d.Decode(&top); err != nil {
			return nil, fmt.Errorf("torchdump: %w", err)
		}
	} else {
		v, err := pickle.Decode(data, pickle.Limits{RawStrings: true})
		if err != nil {
			return nil, fmt.Errorf("torchdump: %w", err)
		}
		var ok bool
		if top, ok = plain(v, 0).(map[string]any); !ok {
			return nil, fmt.Errorf("torchdump: the pickle holds a %s, not a dump", pickle.TypeName(v))
		}
	}
	if _, found := top["version"]; !found {
		return nil, errors.New("torchdump: no flight recorder dump: it has no version")
	}
	d := &Dump{Version: text(top["version"]), Members: map[string][]int{}}
	entries, _ := top["entries"].([]any)
	for _, e := range entries {
		if m, ok := e.(map[string]any); ok {
			d.Entries = append(d.Entries, entry(m))
		}
	}
	config, _ := top["pg_config"].(map[string]any)
	for name, v := range config {
		m, _ := v.(map[string]any)
		if ranks := ranksOf(text(m["ranks"])); name != "" && len(ranks) > 0 {
			d.Members[name] = ranks
		}
	}
	return d, nil
}

// plain turns what a pickle holds into what JSON would hold.
func plain(v any, depth int) any {
	if depth > 32 {
		return nil
	}
	list := func(items []any) []any {
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = plain(item, depth+1)
		}
		return out
	}
	switch v := v.(type) {
	case *pickle.Dict:
		m := make(map[string]any, len(v.Pairs))
		for _, p := range v.Pairs {
			m[text(p.Key)] = plain(p.Value, depth+1)
		}
		return m
	case *pickle.List:
		return list(v.Items)
	case *pickle.Tuple:
		return list(v.Items)
	}
	return v
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = text(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}

func number(v any) int64 {
	n, err := strconv.ParseInt(text(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func entry(m map[string]any) Entry {
	e := Entry{
		Seq: int(number(m["collective_seq_id"])), Created: number(m["time_created_ns"]),
		Sizes: text(m["input_sizes"]), Types: text(m["input_dtypes"]), Peer: -1,
	}
	if pg, ok := m["process_group"].([]any); ok && len(pg) == 2 {
		e.Group, e.Desc = text(pg[0]), text(pg[1])
	}
	name := text(m["profiling_name"])
	var found bool
	if e.Backend, e.Op, found = strings.Cut(name, ":"); !found {
		e.Backend, e.Op = "", name
	}
	e.Op = strings.TrimPrefix(e.Op, "_")
	e.P2P, _ = m["is_p2p"].(bool)
	// NCCL's older backend retires what has timed out. gloo's state is always "scheduled", and what of the newer backends for NCCL are
	// retired before they are completed are those whose end they are not told of.
	retired, _ := m["retired"].(bool)
	e.Open = text(m["state"]) != "completed" && (!retired || e.Backend == "nccl")
	frames, _ := m["frames"].([]any)
	for _, f := range frames {
		frame, _ := f.(map[string]any)
		file := text(frame["filename"])
		if file == "" || strings.Contains(file, "/torch/") || strings.Contains(file, "/lib/python3") {
			continue
		}
		e.Where = file[strings.LastIndexByte(file, '/')+1:] + ":" + text(frame["line"])
		break
	}
	return e
}

// ranksOf reads "[0, 1]".
func ranksOf(s string) []int {
	var ranks []int
	for part := range strings.SplitSeq(strings.Trim(s, "[]"), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil
		}
		ranks = append(ranks, n)
	}
	return ranks
}

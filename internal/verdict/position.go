// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"path"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/pystack"
)

// class is what a rank is busy with, in the order of a job's life.
type class int

const (
	unknown class = iota
	inProgram
	inInit
	inNewGroup
	inMessage
	inCollective
	inRPC
)

// position is where the main thread of a rank is.
type position struct {
	class class
	op    string // the function of torch.distributed: "all_reduce"
	peer  int    // of a message, -1: not known
	line  string // the line of the program that called it: "train.py:53"
	own   string // the innermost function of the program: "load_batch"
	saves bool   // inside torch.save
	loads bool   // inside a data loader
}

func (p position) waits() bool { return p.class >= inInit }

// where returns "all_reduce (train.py:53)" or "load_batch (train.py:12)".
func (p position) where() string {
	switch {
	case p.op != "":
		return p.op + " (" + p.line + ")"
	case p.own != "":
		return p.own + " (" + p.line + ")"
	default:
		return "an unknown place"
	}
}

// place returns "train.py:66".
func (p position) place() string {
	if p.line == "" {
		return "an unknown place"
	}
	return p.line
}

func locate(r Rank) position {
	if r.Main == nil {
		return position{peer: -1}
	}
	if goFrames(r.Main.Frames) {
		return locateGo(r)
	}
	return locateFrames(r.Main.Frames)
}

// locateFrames finds the program's own innermost line and the call of torch.distributed that it made.
func locateFrames(frames []pystack.Frame) position {
	p := position{peer: -1}
	var call *pystack.Frame
	for i := range frames {
		f := &frames[i]
		p.saves = p.saves || strings.HasSuffix(f.File, "/torch/serialization.py") && strings.Contains(f.Func, "save")
		p.loads = p.loads || strings.Contains(f.File, "/torch/utils/data/")
		if distributed(f.File) {
			if _, known := classOf(f.Func, f.File); known {
				call = f // the outermost: what the program called
			}
			continue
		}
		if pystack.Library(f.File) {
			continue
		}
		p.own, p.line = f.Func, line(f)
		break
	}
	if p.own == "" && len(frames) > 0 {
		p.own, p.line = frames[0].Func, line(&frames[0])
	}
	if p.own != "" {
		p.class = inProgram
	}
	if call != nil {
		p.class, _ = classOf(call.Func, call.File)
		p.op = call.Func
		p.peer = peerOf(call)
	}
	return p
}

func line(f *pystack.Frame) string { return path.Base(f.File) + ":" + strconv.Itoa(f.Line) }

func distributed(file string) bool {
	return strings.Contains(file, "/torch/distributed/") || strings.HasSuffix(file, "/torch/nn/parallel/distributed.py")
}

var collectives = map[string]bool{
	"all_reduce": true, "all_reduce_coalesced": true, "broadcast": true, "broadcast_object_list": true, "reduce": true, "all_gather": true,
	"all_gather_into_tensor": true, "all_gather_object": true, "all_gather_coalesced": true, "gather": true, "gather_object": true, "scatter": true,
	"scatter_object_list": true, "reduce_scatter": true, "reduce_scatter_tensor": true, "all_to_all": true, "all_to_all_single": true,
	"barrier": true, "monitored_barrier": true, "_all_gather_base": true, "_reduce_scatter_base": true,
}

// classOf says what a function of torch.distributed is about.
func classOf(function, file string) (class, bool) {
	switch {
	case function == "init_process_group":
		return inInit, true
	case strings.HasPrefix(function, "new_group") || strings.HasPrefix(function, "new_subgroups") || function == "split_group":
		return inNewGroup, true
	case function == "recv" || function == "send" || function == "recv_object_list" || function == "send_object_list":
		return inMessage, true
	case collectives[function]:
		return inCollective, true
	case strings.HasSuffix(file, "/torch/nn/parallel/distributed.py"):
		return inCollective, true
	case strings.Contains(file, "/torch/distributed/rpc/") && (function == "shutdown" || function == "init_rpc" || function == "rpc_sync" || function == "_wait_all_workers"):
		return inRPC, true
	}
	return unknown, false
}

// peerOf reads the other side of a message from the plain arguments of the call.
func peerOf(f *pystack.Frame) int {
	for arg := range strings.FieldsSeq(f.Args) {
		name, value, _ := strings.Cut(arg, "=")
		if name == "src" || name == "dst" {
			if n, err := strconv.Atoi(value); err == nil {
				return n
			}
		}
	}
	return -1
}

// Where returns in a few words where a stack is: "all_reduce (train.py:53)".
func Where(frames []pystack.Frame) string {
	return locate(Rank{Main: &pystack.Thread{Frames: frames}}).where()
}

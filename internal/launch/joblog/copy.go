// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	// pieceSize is read at once. A pipe holds as much by default.
	pieceSize = 64 << 10
	// maxLine is the length at which a line without an end is written in pieces.
	maxLine = 64 << 10
	// stillTime is how long a piece of a line waits for the rest: a prompt has none.
	stillTime = 100 * time.Millisecond
	// sharedTime is the same where other workers print to the same screen: a worker that the machine keeps waiting in the
	// middle of a line must not find lines of others in it.
	sharedTime = 5 * time.Second
)

// Stream says where the output of one stream of a worker goes.
type Stream struct {
	// Screen is where its lines go, with Prefix before each; nil: nowhere.
	Screen *Output
	Prefix []byte
	// Shared says that other workers print to the screen too.
	Shared bool
	// Lines, if set, takes whole lines in place of Screen, as a terminal would show them: of what a carriage return has
	// drawn over, such as a progress bar, the last state. Live, if set, is called with the line that is not finished whenever it
	// changes. Neither may keep the bytes.
	Lines func(line []byte)
	Live  func(line []byte)
	// File gets a copy of every byte, or nil. When it cannot be written, Trouble is called once and the rest goes on. If only the disk is
	// full, the file goes on when there is room, with a line that says how much is missing.
	File    io.Writer
	Trouble func(error)
	// Filtered gets the lines that Keep wants, with Prefix; nil: none.
	Filtered *Output
	Keep     func(line []byte) bool
	// Tail keeps the last lines, or nil.
	Tail *Tail

	lost int   // how much is missing at the end of the file
	full error // why, nil if it never was
}

// Copy moves what r yields until its end. When the screen is closed (a closed pipe) it returns the error at once, so that
// the worker finds its output closed, as it would without a launcher.
func Copy(r *os.File, s *Stream) error {
	if s.Lines != nil {
		return s.copyLines(r)
	}
	buf := make([]byte, pieceSize)
	var rest []byte // of a line
	for {
		if len(rest) > 0 {
			_ = r.SetReadDeadline(time.Now().Add(s.flushDelay(rest)))
		}
		failpoint.At("joblog.copy.read")
		n, err := r.Read(buf)
		if len(rest) > 0 {
			_ = r.SetReadDeadline(time.Time{})
		}
		s.keep(buf[:n])
		var gone error
		rest, gone = s.show(rest, buf[:n])
		switch {
		case gone != nil:
			return gone
		case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
			rest, gone = nil, s.put(rest)
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			gone = s.finish(rest)
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				err = nil
			}
			return errors.Join(gone, err)
		}
		if gone != nil {
			return gone
		}
	}
}

// flushDelay is how long a piece of a line waits for the rest. One that a carriage return draws over is a progress bar, which
// may have no end for hours.
func (s *Stream) flushDelay(piece []byte) time.Duration {
	if s.Shared && bytes.IndexByte(piece, '\r') < 0 {
		return sharedTime
	}
	return stillTime
}

// copyLines is Copy for functions that take whole lines. They are never closed.
func (s *Stream) copyLines(r *os.File) error {
	buf := make([]byte, pieceSize)
	var open rows
	var rest []byte // of a line for the filter, which sees lines as they are
	for {
		if open.waiting() {
			_ = r.SetReadDeadline(time.Now().Add(stillTime))
		}
		failpoint.At("joblog.copy.read")
		n, err := r.Read(buf)
		s.keep(buf[:n])
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if open.waiting() || late {
			_ = r.SetReadDeadline(time.Time{})
		}
		open.feed(buf[:n], time.Now(), s.Lines)
		rest, _ = s.show(rest, buf[:n])
		if err != nil && !late {
			open.finish(s.Lines)
			_ = s.finish(rest)
		}
		if open.changed && s.Live != nil {
			open.changed = false
			s.Live(open.live())
		}
		switch {
		case err == nil || late:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// keep copies a piece to the file and the tail.
func (s *Stream) keep(piece []byte) {
	if len(piece) == 0 {
		return
	}
	if s.Tail != nil {
		s.Tail.add(piece)
	}
	if s.File != nil {
		s.save(piece)
	}
}

// save copies a piece to the file.
func (s *Stream) save(piece []byte) {
	if s.lost > 0 {
		if _, err := fmt.Fprintf(s.File, "\n[%d bytes are missing here: %v]\n", s.lost, s.full); err != nil {
			s.lost += len(piece)
			return
		}
		s.lost = 0
	}
	n, err := s.File.Write(piece)
	if err == nil {
		return
	}
	if s.full == nil && s.Trouble != nil {
		s.Trouble(err)
	}
	if s.lost, s.full = len(piece)-n, err; !noRoom(err) {
		s.File = nil
	}
}

// noRoom reports whether a file cannot be written because the disk, or the user's part of it, is full.
func noRoom(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// show writes the whole lines of rest and piece and returns what is left of the last one.
func (s *Stream) show(rest, piece []byte) ([]byte, error) {
	if len(piece) == 0 || s.Screen == nil && s.Filtered == nil {
		return rest, nil
	}
	last := bytes.LastIndexByte(piece, '\n')
	if last < 0 {
		rest = append(rest, piece...)
		if len(rest) < maxLine {
			return rest, nil
		}
		return nil, s.put(rest)
	}
	lines := piece[:last+1]
	if len(rest) > 0 {
		// The line that was begun ends here. It is put together so that it is written at once.
		first := bytes.IndexByte(lines, '\n') + 1
		if err := s.put(append(rest, lines[:first]...)); err != nil {
			return nil, err
		}
		lines = lines[first:]
	}
	err := s.put(lines)
	return append(rest[:0], piece[last+1:]...), err
}

// finish writes what is left at the end.
func (s *Stream) finish(rest []byte) error {
	if len(rest) == 0 || s.Screen == nil && s.Filtered == nil {
		return nil
	}
	return s.put(rest)
}

// put hands text on: whole lines, or a piece that is not finished.
func (s *Stream) put(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	if s.Filtered != nil {
		for rest := text; len(rest) > 0; {
			end := lineEnd(rest)
			if s.Keep(rest[:end]) {
				_ = s.Filtered.put(s, s.Prefix, rest[:end])
			}
			rest = rest[end:]
		}
	}
	if s.Screen == nil {
		return nil
	}
	return s.Screen.put(s, s.Prefix, text)
}

// lineEnd returns the length of the first line with its end.
func lineEnd(text []byte) int {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return i + 1
	}
	return len(text)
}

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
)

// Stream says where the output of one stream of a worker goes.
type Stream struct {
	// Screen is where its lines go, with Prefix before each; nil: nowhere.
	Screen *Output
	Prefix []byte
	// Shared says that other workers print to the screen too. A line that is not finished is continued only by streams with
	// the same Writer; nil: by this stream.
	Shared bool
	Writer any
	// Drawn has Screen get lines as a terminal would show them: of what a carriage return has drawn over, such as a
	// progress bar, the last state, and now and then the one before.
	Drawn bool
	// Lines, if set, takes these lines in place of Screen. Live, if set, is called with the line that is not finished whenever it
	// changes; otherwise such a line is handed on, as a line of its own, when it stands still and every few seconds while it
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

	lost int    // how much is missing at the end of the file
	full error  // why, nil if it never was
	rest []byte // of a line for the filter, which sees lines as they are
}

// copier is the machine of a stream: it takes pieces and shows lines. It has no clock.
type copier interface {
	// feed takes a piece, which may be empty. An error means that the screen is closed.
	feed(piece []byte, now time.Time) error
	// next returns when feed is to be called though nothing was read; zero: never.
	next() time.Time
	// finish shows what is left at the end.
	finish(now time.Time) error
}

func (s *Stream) copier() copier {
	if s.Drawn || s.Lines != nil {
		return newDrawnCopier(s)
	}
	return &pieceCopier{s: s}
}

// copyStream moves what r yields until its end. When the screen is closed (a closed pipe) it returns the error at once, so that
// the worker finds its output closed, as it would without a launcher.
func copyStream(r *os.File, s *Stream) error {
	buf := make([]byte, pieceSize)
	c := s.copier()
	for {
		next := c.next()
		if !next.IsZero() {
			_ = r.SetReadDeadline(next)
		}
		failpoint.At("joblog.copy.read")
		n, err := r.Read(buf)
		if !next.IsZero() {
			_ = r.SetReadDeadline(time.Time{})
		}
		s.keep(buf[:n])
		gone := c.feed(buf[:n], time.Now())
		switch {
		case gone != nil:
			return gone
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			err = nil
		}
		s.filter(nil, true)
		return errors.Join(c.finish(time.Now()), err)
	}
}

// pieceCopier shows text as it is, in whole lines; a piece of a line when the pacer says so.
type pieceCopier struct {
	s     *Stream
	rest  []byte // of a line
	pacer pacer
}

func (c *pieceCopier) feed(piece []byte, now time.Time) error {
	var err error
	if c.rest, err = c.s.show(c.rest, piece); err != nil {
		return err
	}
	if bytes.IndexByte(piece, '\n') >= 0 || len(c.rest) == 0 {
		c.pacer.clear()
	}
	if len(piece) > 0 && len(c.rest) > 0 {
		c.pacer.changed(now)
		c.pacer.still, c.pacer.limit = c.s.patience(c.rest)
	}
	if over(c.pacer.due(), now) {
		c.pacer.printed(now)
		piece, c.rest = c.rest, nil
		return c.s.put(piece)
	}
	return nil
}

func (c *pieceCopier) next() time.Time { return c.pacer.due() }

func (c *pieceCopier) finish(time.Time) error { return c.s.put(c.rest) }

// patience is how long a piece of a line that stands still waits for the rest, and one that keeps growing. One that a
// carriage return draws over is a progress bar, which may have no end for hours.
func (s *Stream) patience(piece []byte) (still, limit time.Duration) {
	switch {
	case !s.Shared:
		return stillTime, stillTime
	case bytes.IndexByte(piece, '\r') >= 0:
		return stillTime, barTime
	}
	return sharedTime, sharedTime
}

// keep copies a piece to the file and the tail, and its lines to the filter.
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
	s.filter(piece, false)
}

// filter hands the filter its whole lines, at the end also the last one.
func (s *Stream) filter(piece []byte, end bool) {
	if s.Filtered == nil {
		return
	}
	s.rest = append(s.rest, piece...)
	for len(s.rest) > 0 {
		n := bytes.IndexByte(s.rest, '\n') + 1
		if n == 0 && !end && len(s.rest) < maxLine {
			return
		}
		if n == 0 {
			n = len(s.rest)
		}
		if s.Keep(s.rest[:n]) {
			_ = s.Filtered.put(s, s.Prefix, s.rest[:n])
		}
		s.rest = s.rest[n:]
	}
	s.rest = nil
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
	if len(piece) == 0 || s.Screen == nil {
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

// put hands text on: whole lines, or a piece that is not finished.
func (s *Stream) put(text []byte) error {
	if len(text) == 0 || s.Screen == nil {
		return nil
	}
	return s.Screen.put(s.writer(), s.Prefix, text)
}

func (s *Stream) writer() any {
	if s.Writer == nil {
		return s
	}
	return s.Writer
}

// lineEnd returns the length of the first line with its end.
func lineEnd(text []byte) int {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return i + 1
	}
	return len(text)
}

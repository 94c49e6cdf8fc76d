// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import "time"

// drawnCopier hands on lines as a terminal would show them.
type drawnCopier struct {
	s     *Stream
	rows  rows
	pacer pacer
	batch []byte // lines for the screen
}

func newDrawnCopier(s *Stream) *drawnCopier {
	return &drawnCopier{s: s, pacer: pacer{still: barTime, limit: barTime, every: repeatTime}}
}

func (c *drawnCopier) feed(piece []byte, now time.Time) error {
	c.rows.feed(piece, now, c.put)
	switch {
	case c.s.Live != nil:
		c.live()
	case c.rows.changed && c.rows.hidden():
		c.pacer.changed(now)
	case c.rows.changed:
		c.pacer.clear()
	}
	c.rows.changed = false
	if over(c.pacer.due(), now) {
		c.rows.show(c.put)
		c.pacer.printed(now)
	}
	return c.flush()
}

func (c *drawnCopier) live() {
	if c.rows.changed {
		c.s.Live(c.rows.live())
	}
}

func (c *drawnCopier) next() time.Time { return sooner(c.rows.settles(), c.pacer.due()) }

func (c *drawnCopier) finish(time.Time) error {
	c.rows.finish(c.put)
	if c.s.Live != nil {
		c.live()
	}
	return c.flush()
}

// put takes a line.
func (c *drawnCopier) put(line []byte) {
	switch {
	case c.s.Lines != nil:
		c.s.Lines(line)
	case c.s.Screen != nil:
		c.batch = append(append(append(c.batch, c.s.Prefix...), line...), '\n')
	}
}

// flush writes the lines of a piece at once.
func (c *drawnCopier) flush() error {
	if len(c.batch) == 0 {
		return nil
	}
	err := c.s.Screen.put(c.s.writer(), nil, c.batch)
	if c.batch = c.batch[:0]; cap(c.batch) > 1<<20 {
		c.batch = nil
	}
	return err
}

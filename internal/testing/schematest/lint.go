// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package schematest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	// unit ends the name of a number with fractions.
	unit = regexp.MustCompile(`_(s|ms|bytes|pct|per_s)$`)
)

// Lint says what is wrong with a schema itself: a field without a description, a name that is not in snake_case or lacks its unit,
// a time whose name does not end with "_at", a required field that it does not have.
func (s *Schema) Lint() []string {
	var c checker
	c.lint("", s)
	for _, name := range slices.Sorted(maps.Keys(s.Defs)) {
		c.lint("$defs."+name, s.Defs[name])
	}
	return c.wrong
}

func (c *checker) lint(at string, s *Schema) {
	if s.Ref == "" && s.Description == "" {
		c.fail(at, "it has no description")
	}
	for _, name := range s.Required {
		if s.Properties[name] == nil {
			c.fail(at, "it requires %q, which it does not have", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		c.name(at+"."+name, name, s.Properties[name])
		c.lint(at+"."+name, s.Properties[name])
	}
	if s.Items != nil && s.Items.Properties != nil {
		c.lint(at+"[]", s.Items)
	}
}

func (c *checker) name(at, name string, s *Schema) {
	isTime := s.Format == "date-time"
	hasAt := name == "at" || strings.HasSuffix(name, "_at")
	switch {
	case !snakeCase.MatchString(name):
		c.fail(at, "the name is not in snake_case")
	case strings.HasSuffix(name, "_ns"):
		c.fail(at, "nanoseconds: give seconds, with _s")
	case isTime != hasAt:
		c.fail(at, "a time has a name that ends with _at, and format date-time")
	case s.Type == "number" && !unit.MatchString(name) && name != "value":
		c.fail(at, "a number needs its unit at the end of its name: %s", fmt.Sprint(unit))
	}
}

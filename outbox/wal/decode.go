package wal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
)

var errMalformed = errors.New("malformed replication message")

// decode reads a message of pgoutput as far as news need it. Everything that comes is committed, so
// that a destination is told where a transaction names it first. See
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
func (s *stream) decode(data []byte) error {
	if len(data) == 0 {
		return errMalformed
	}
	switch pglogrepl.MessageType(data[0]) {
	case pglogrepl.MessageTypeRelation:
		return s.relate(data)
	case pglogrepl.MessageTypeInsert:
		return s.insert(data[1:])
	case pglogrepl.MessageTypeCommit:
		clear(s.told)
		s.toldAll = false
	}
	return nil
}

// relate notes where the outbox has its destination.
func (s *stream) relate(data []byte) error {
	msg, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	relation, ok := msg.(*pglogrepl.RelationMessage)
	if !ok || relation.Namespace != s.schema || relation.RelationName != "outbox" {
		return nil
	}
	s.columns[relation.RelationID] = -1
	for i, c := range relation.Columns {
		if c.Name == "destination" {
			s.columns[relation.RelationID] = i
		}
	}
	return nil
}

// insert tells of a row's destination, and keeps nothing else of it.
func (s *stream) insert(data []byte) error {
	if len(data) < 7 || data[4] != 'N' {
		return fmt.Errorf("%w: insert", errMalformed)
	}
	column, ours := s.columns[binary.BigEndian.Uint32(data)]
	if !ours || s.toldAll {
		return nil
	}
	destination, err := field(data[5:], column)
	switch {
	case err != nil:
		return err
	case s.told[string(destination)]:
		return nil
	case column < 0 || len(s.told) >= maxTold:
		s.toldAll = true
		s.news("", true)
		return nil
	}
	s.told[string(destination)] = true
	s.news(string(destination), false)
	return nil
}

// field finds a column's text in a tuple; it is empty where there is none.
func field(tuple []byte, column int) ([]byte, error) {
	n, rest := int(binary.BigEndian.Uint16(tuple)), tuple[2:]
	for i := range min(column+1, n) {
		if len(rest) == 0 {
			return nil, fmt.Errorf("%w: tuple", errMalformed)
		}
		kind := rest[0]
		rest = rest[1:]
		if kind == 'n' || kind == 'u' { // null, or kept out of line and unchanged
			continue
		}
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.BigEndian.Uint32(rest)) {
			return nil, fmt.Errorf("%w: tuple", errMalformed)
		}
		size := int(binary.BigEndian.Uint32(rest))
		if i == column {
			return rest[4 : 4+size], nil
		}
		rest = rest[4+size:]
	}
	return nil, nil
}

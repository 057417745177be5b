//! The statements. The table's name is checked when the URL is read; everything else is a parameter.

/// The statements for one table.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) read: String,
    pub(crate) free: String,
    pub(crate) emptied: String,
    pub(crate) living: String,
    pub(crate) seen: String,
    pub(crate) list: String,
    pub(crate) all: String,
}

impl Statements {
    pub(crate) fn of(table: &str) -> Statements {
        Statements {
            // A new row's counter begins at the wall clock (?6), so that fences rise even after the loss of the
            // file. No fence is less than ?7.
            free: format!(
                "INSERT INTO {table} AS c (name, claims, version, seq, origin, lapses) \
                 VALUES (?1, ?2, ?3, ?6, ?4, ?4 + ?5) \
                 ON CONFLICT (name) DO UPDATE SET claims = excluded.claims, version = excluded.version, \
                 seq = max(c.seq + 1, ?7), origin = excluded.origin, lapses = excluded.lapses \
                 WHERE c.lapses <= ?4 OR c.claims = '' RETURNING seq"
            ),
            emptied: format!(
                "UPDATE {table} SET claims = ?2, version = ?3, seq = max(seq + 1, ?7), origin = ?4, lapses = ?4 + ?5 \
                 WHERE name = ?1 AND version = ?6 RETURNING seq"
            ),
            read: format!("SELECT claims, version, seq, origin FROM {table} WHERE name = ?1"),
            living: format!(
                "UPDATE {table} SET claims = ?2, version = ?3, origin = ?4, lapses = ?4 + ?5 \
                 WHERE name = ?1 AND version = ?6 AND lapses > ?4 RETURNING seq"
            ),
            seen: format!(
                "UPDATE {table} SET claims = ?2, version = ?3, seq = ?4, lapses = origin + ?5 \
                 WHERE name = ?1 AND version = ?6 RETURNING seq"
            ),
            list: format!(
                "SELECT name, claims, version, seq, origin FROM {table} \
                 WHERE name >= ?1 AND name > ?2 AND lapses > ?3 AND claims <> '' ORDER BY name"
            ),
            all: format!(
                "SELECT name, claims, version, seq, origin, lapses FROM {table} WHERE name > ?1 ORDER BY name LIMIT ?2"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::config::SqliteConfig;
    use crate::sql::schema::schema;

    #[test]
    fn no_statement_reads_the_whole_table() {
        let config = SqliteConfig::parse("sqlite:locks.db").unwrap();
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&schema(&config)).unwrap();
        let Statements { read, free, emptied, living, seen, list, all } = Statements::of(&config.table);
        // An insertion finds its row by the key, which is not worth a line to SQLite.
        let searching = [read, emptied, living, seen, list, all].map(|sql| (sql, 1));
        for (sql, steps) in searching.into_iter().chain([(free, 0)]) {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let parameters = vec![None::<i64>; plan.parameter_count()];
            let plan = plan.query_map(rusqlite::params_from_iter(parameters), |row| row.get(3)).unwrap();
            let plan: Vec<String> = plan.map(Result::unwrap).collect();
            assert_eq!(plan.len(), steps, "{sql}: {plan:?}");
            assert!(plan.iter().all(|step| step.starts_with("SEARCH")), "{sql}: {plan:?}");
        }
    }
}

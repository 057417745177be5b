//! A lock in any store, and a row of PostgreSQL that refuses the holder of yesterday.
//!
//! The lock alone cannot do this: a process that is paused between its check of the lock and its write
//! does not know that the lock was lost. So the row has a column for the newest fence. The fence is
//! raised before the first read, and every statement checks it.
//!
//! ```console
//! $ cargo run -p leasehold --features postgres --example fenced_postgres postgres://user@127.0.0.1/database
//! ```

use leasehold::fenced::{FenceColumn, SqlDialect};
use leasehold::{Client, FenceGrade};
use tokio_postgres::{Client as Database, NoTls};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(url) = std::env::args().nth(1) else {
        return Err("say which database: postgres://user@127.0.0.1/database".into());
    };
    let (db, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let column = FenceColumn::new(SqlDialect::Postgres, "leasehold_example_stock", "id")?;
    prepare(&db, &column).await?;

    // The lock may be anywhere; here it is in the same database.
    let locks = Client::open(&url).await?;
    let mutex = locks.mutex("stock/42").require_fencing(FenceGrade::BestEffort)?;

    let old = mutex.lock().await?;
    open(&db, &column, old.fence()).await?;
    let old_fence = column.value(old.fence())?;
    println!("the first holder has {old_fence} and sees {} pieces", pieces(&db, &column, &old_fence).await?);
    // The holder is paused here, and its lock is lost; in this example the lock is simply released.
    old.release().await?;

    let new = mutex.lock().await?;
    open(&db, &column, new.fence()).await?;
    let new_fence = column.value(new.fence())?;
    let seen = pieces(&db, &column, &new_fence).await?;
    println!("the second holder has {new_fence} and sees {seen} pieces");
    // The second holder has read and not written yet: here a check of the writes alone would lose an
    // update.
    let changed = sell(&db, &column, &old_fence, seen - 1).await?;
    println!("the first holder wakes up and writes: {changed} rows changed");
    let changed_by_new = sell(&db, &column, &new_fence, seen - 1).await?;
    println!("the second holder writes: {changed_by_new} rows changed");
    new.release().await?;
    db.execute("drop table leasehold_example_stock", &[]).await?;
    if (changed, changed_by_new) != (0, 1) {
        return Err("the fence was not kept".into());
    }
    Ok(())
}

/// A table as a program has it, and the column that is added to it.
async fn prepare(db: &Database, column: &FenceColumn) -> Result<(), tokio_postgres::Error> {
    db.batch_execute(
        "drop table if exists leasehold_example_stock;
         create table leasehold_example_stock (id bigint primary key, pieces bigint not null);
         insert into leasehold_example_stock values (42, 10)",
    )
    .await?;
    db.batch_execute(&column.add_column_sql().text).await
}

/// Raises the fence of the row before anything is read from it.
async fn open(
    db: &Database,
    column: &FenceColumn,
    fence: Option<leasehold::Fence>,
) -> Result<(), Box<dyn std::error::Error>> {
    // The parameters are those that `raise().parameters` names: the fence, then the key.
    db.execute(&column.raise_sql().text, &[&column.value(fence)?, &ID]).await?;
    let row = db.query_opt(&column.select_sql().text, &[&ID]).await?;
    let seen: Option<String> = row.map(|row| row.get(0));
    column.check(fence, seen.as_deref())?;
    Ok(())
}

async fn pieces(db: &Database, column: &FenceColumn, fence: &str) -> Result<i64, tokio_postgres::Error> {
    let text =
        format!("select pieces from leasehold_example_stock where id = $2 and {}", column.condition_sql(1));
    Ok(db.query_one(&text, &[&fence, &ID]).await?.get(0))
}

/// Sells one piece. Returns the number of changed rows: one, or none if a newer holder has opened the
/// row.
async fn sell(
    db: &Database,
    column: &FenceColumn,
    fence: &str,
    left: i64,
) -> Result<u64, tokio_postgres::Error> {
    let text = format!(
        "update leasehold_example_stock set pieces = $3 where id = $2 and {}",
        column.condition_sql(1)
    );
    db.execute(&text, &[&fence, &ID, &left]).await
}

const ID: i64 = 42;
